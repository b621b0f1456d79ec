"""JSON schemas of KubeRay's objects, closed, for the fields that deploy/ uses.

Written by hand from the field reference of KubeRay v1.7.0 (docs.ray.io, KubeRay CRD API
reference), since no package ships the definitions themselves. What Kubernetes defines
(pod templates, resources, security contexts) is left open here, for tests check it against
Kubernetes' own schemas.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
KUBERNETES: Schema = {"type": ["object", "array"]}
START_PARAMETERS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: str = "", /, **fields: Schema) -> Schema:
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


POD_TEMPLATE = _object("metadata spec", metadata=KUBERNETES, spec=KUBERNETES)
GROUP = {"rayStartParams": START_PARAMETERS, "template": POD_TEMPLATE}
CLUSTER = _object(
    "headGroupSpec workerGroupSpecs rayVersion authOptions",
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    authOptions=_object("mode", mode={"enum": ["token", "disabled"]}, secretName=TEXT),
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=_object(
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=COUNT,
        resources=KUBERNETES,
        securityContext=KUBERNETES,
        volumeMounts=KUBERNETES,
    ),
    headGroupSpec=_object(
        "rayStartParams template",
        **GROUP,
        serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    ),
    workerGroupSpecs={
        "type": "array",
        "items": _object(
            "groupName rayStartParams template",
            **GROUP,
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
        ),
    },
)
JOB = _object(
    "entrypoint rayClusterSpec submitterPodTemplate",
    entrypoint=TEXT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    backoffLimit=COUNT,
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    preRunningDeadlineSeconds={"type": "integer", "minimum": 1},
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=COUNT,
    rayClusterSpec=CLUSTER,
    submitterPodTemplate=POD_TEMPLATE,
)
SERVICE = _object(
    "serveConfigV2 rayClusterConfig",
    serveConfigV2=TEXT,
    excludeHeadPodFromServeSvc=FLAG,
    rayClusterConfig=CLUSTER,
)


def _kind(kind: str, spec: Schema) -> Schema:
    return _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=_object("name namespace", name=TEXT, namespace=TEXT),
        spec=spec,
    )


SCHEMAS = {
    "RayCluster": _kind("RayCluster", CLUSTER),
    "RayJob": _kind("RayJob", JOB),
    "RayService": _kind("RayService", SERVICE),
}
