"""What Prometheus and Grafana are told: about metrics that exist, and about all that do."""

import json
import re

import promql_parser
import pytest
import yaml

from raylab.core.on_ray import metrics
from tests.deploy.manifests import DEPLOY, Manifest

OBSERVABILITY = DEPLOY / "observability"
DASHBOARD: Manifest = json.loads((OBSERVABILITY / "dashboard.json").read_text())
RULES: Manifest = yaml.safe_load((OBSERVABILITY / "rules.yaml").read_text())
SUFFIXES = {
    metrics.Counter: ("_total",),
    metrics.Gauge: ("",),
    metrics.Histogram: ("_bucket", "_sum", "_count"),
}
"""What Ray 2.60 appends to the name of a metric of each kind."""
SERIES: dict[str, metrics.RayMetric] = {
    f"ray_{metric.name}{suffix}": metric
    for metric in vars(metrics).values()
    if isinstance(metric, metrics.RayMetric)
    for suffix in SUFFIXES[metric.kind]
}
"""The metric of every series that Ray exports."""
PANELS: list[Manifest] = [
    each for panel in DASHBOARD["panels"] for each in (panel, *panel.get("panels", []))
]
TARGETS: list[Manifest] = [target for panel in PANELS for target in panel.get("targets", [])]
QUERIES = [
    target["expr"].replace("$__rate_interval", "1m").replace("$run", ".*") for target in TARGETS
]
"""Every expression of the dashboard, with Grafana's variables filled in."""
ALERTS = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\bray_raylab_\w+", expression))


def grouped_by(expression: str) -> set[str]:
    return set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", expression))))


@pytest.mark.parametrize("expression", [*QUERIES, *ALERTS])
def test_every_expression_is_promql_over_series_and_labels_that_ray_exports(
    expression: str,
) -> None:
    promql_parser.parse(expression)
    series = series_in(expression)
    assert series and series <= SERIES.keys()
    labels = grouped_by(expression) | set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
    buckets = {"le"} if any(name.endswith("_bucket") for name in series) else set[str]()
    own = set.intersection(*(set(SERIES[name].labels) for name in series))
    assert labels and labels <= own | buckets | {"run"}


def test_every_metric_is_on_the_dashboard_and_every_legend_names_labels_of_its_query() -> None:
    for target in TARGETS:
        names = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert names <= grouped_by(target["expr"])
    shown = {SERIES[name].name for query in QUERIES for name in series_in(query)}
    assert shown == {metric.name for metric in SERIES.values()}
