"""What Prometheus and Grafana are told: about metrics that exist, and about all that do."""

import ast
import json
import re
from collections.abc import Iterator

import promql_parser
import pytest
import yaml

from tests.deploy.manifests import DEPLOY, ROOT, Manifest, of_kind, pods

OBSERVABILITY = DEPLOY / "observability"
DASHBOARD: Manifest = json.loads((OBSERVABILITY / "dashboard.json").read_text())
RULES: Manifest = yaml.safe_load((OBSERVABILITY / "rules.yaml").read_text())
SERIES = {
    "Counter": ("_total",),
    "Gauge": ("",),
    "Histogram": ("_bucket", "_sum", "_count"),
}
"""What Ray 2.60 appends to the name of a metric of each kind."""
LABELS = {"Counter": set[str](), "Gauge": set[str](), "Histogram": {"le"}}
"""Labels that every metric of a kind has beside its own and `run`."""


def metrics_of_raylab() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every metric that the source defines."""
    found: dict[str, tuple[str, set[str]]] = {}
    for path in (ROOT / "raylab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = node.args[0].value
                kind = ast.unparse(node.func).rpartition(".")[2]
                if kind in SERIES and str(name).startswith("raylab_"):
                    labels = {label for more in node.args[2:] for label in ast.literal_eval(more)}
                    found[name] = kind, labels | {"run"} | LABELS[kind]
    return found


METRICS = metrics_of_raylab()


def panels() -> Iterator[Manifest]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries() -> list[str]:
    """Every expression of the dashboard, with Grafana's variables filled in."""
    texts = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    return [text.replace("$__rate_interval", "1m").replace("$run", ".*") for text in texts]


def expressions() -> list[str]:
    return queries() + [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\bray_raylab_\w+", expression))


def labels_in(expression: str) -> set[str]:
    """Labels that an expression selects or groups by."""
    grouped = [re.findall(r"\w+", names) for names in re.findall(r"\bby \(([^)]*)\)", expression)]
    return {name for names in grouped for name in names} | set(
        re.findall(r"(\w+)(?:=~|!=|=)\"", expression)
    )


def test_there_are_metrics_to_show() -> None:
    assert METRICS["raylab_llm_attempts"] == ("Counter", {"run", "endpoint", "model", "outcome"})
    assert METRICS["raylab_llm_seconds"] == ("Histogram", {"run", "endpoint", "model", "le"})
    assert METRICS["raylab_trials_best"] == ("Gauge", {"run"})


def known_labels(expression: str) -> set[str]:
    """Labels that every series of an expression has."""
    shown = (
        labels
        for name, (kind, labels) in METRICS.items()
        if series_in(expression) & {f"ray_{name}{suffix}" for suffix in SERIES[kind]}
    )
    return set.intersection(*shown)


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_is_promql_over_series_and_labels_that_ray_exports(
    expression: str,
) -> None:
    promql_parser.parse(expression)
    exported = {
        f"ray_{name}{suffix}" for name, (kind, _) in METRICS.items() for suffix in SERIES[kind]
    }
    assert series_in(expression) and series_in(expression) <= exported
    assert labels_in(expression) and labels_in(expression) <= known_labels(expression)


def test_every_legend_names_labels_that_its_query_keeps() -> None:
    for panel in panels():
        for target in panel.get("targets", []):
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            assert shown <= set(re.findall(r"\w+", " ".join(grouped)))


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {series for query in queries() for series in series_in(query)}
    for name, (kind, _) in METRICS.items():
        assert shown & {f"ray_{name}{suffix}" for suffix in SERIES[kind]}, name


def test_prometheus_finds_the_nodes_by_the_token() -> None:
    config: Manifest = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())
    assert config["rule_files"] == ["rules.yaml"]
    (scrape,) = config["scrape_configs"]
    (discovery,) = scrape["http_sd_configs"]
    assert discovery["url"] == "http://127.0.0.1:8265/api/prometheus/sd"
    assert discovery["authorization"] == {"credentials_file": "auth_token"}


def test_the_pod_monitor_finds_every_ray_pod_and_the_network_lets_it() -> None:
    spec = yaml.safe_load((OBSERVABILITY / "podmonitor.yaml").read_text())["spec"]
    (selector,) = spec["selector"]["matchExpressions"]
    assert selector["key"] == "raylab/role"
    watched = {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
    ray_pods = [pod for pod in pods() if pod.role != "submitter"]
    for pod in ray_pods:
        assert pod.role in selector["values"]
        assert "metrics" in {port["name"] for port in pod.container["ports"]}
    ports = {p["name"]: p["containerPort"] for pod in ray_pods for p in pod.container["ports"]}
    (policy,) = (o for o in of_kind("NetworkPolicy") if o["metadata"]["name"] == "metrics")
    (rule,) = policy["spec"]["ingress"]
    assert {port["port"] for port in rule["ports"]} == {ports[name] for name in watched}
