"""JSON schemas of KubeRay's objects, closed, for the fields that deploy/ uses.

No package has KubeRay's own definitions. These are of the same fields and types as the definitions
of KubeRay 1.7.0; what Kubernetes defines is open here, for its own schemas check it.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
KUBERNETES: Schema = {"type": ["object", "array"]}
PARAMETERS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: str = "", /, **fields: Schema) -> Schema:
    closed = {"type": "object", "properties": fields, "additionalProperties": False}
    return closed | {"required": required.split()}


POD = _object("metadata spec", metadata=KUBERNETES, spec=KUBERNETES)
GROUP = _object(
    "groupName template",
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=PARAMETERS,
    template=POD,
)
CLUSTER = _object(
    "headGroupSpec",
    rayVersion=TEXT,
    authOptions=_object(mode={"enum": ["token", "disabled"]}, secretName=TEXT),
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=_object(
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=COUNT,
        resources=KUBERNETES,
        securityContext=KUBERNETES,
        volumeMounts=KUBERNETES,
    ),
    headGroupSpec=_object("template", serviceType=TEXT, rayStartParams=PARAMETERS, template=POD),
    workerGroupSpecs={"type": "array", "items": GROUP},
)
JOB = _object(
    entrypoint=TEXT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    backoffLimit=COUNT,
    activeDeadlineSeconds=COUNT,
    preRunningDeadlineSeconds=COUNT,
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=COUNT,
    rayClusterSpec=CLUSTER,
    submitterPodTemplate=POD,
)
SERVICE = _object(serveConfigV2=TEXT, excludeHeadPodFromServeSvc=FLAG, rayClusterConfig=CLUSTER)
SCHEMAS = {
    kind: _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=_object("name namespace", name=TEXT, namespace=TEXT),
        spec=spec,
    )
    for kind, spec in {"RayCluster": CLUSTER, "RayJob": JOB, "RayService": SERVICE}.items()
}
