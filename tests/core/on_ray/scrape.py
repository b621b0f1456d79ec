"""What Ray exports to Prometheus."""

import time
from collections.abc import Mapping
from urllib.request import urlopen

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

SECONDS = 60.0

Sample = tuple[dict[str, str], float]
"""Labels, and the value."""


def exported(run: str, totals: Mapping[str, float]) -> dict[str, list[Sample]]:
    """The samples of a run by series, as soon as those of each of these add up to its total.

    Processes are collected one after another, so that sums come up to it by and by.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        found = _scraped(run)
        sums = {name: sum(value for _, value in found.get(name, ())) for name in totals}
        if totals.keys() <= found.keys() and sums == pytest.approx(dict(totals)):
            return found
        assert time.monotonic() < deadline, f"exported: {sums}, expected: {totals}"
        time.sleep(0.5)


def _scraped(run: str) -> dict[str, list[Sample]]:
    address = f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"
    with urlopen(address) as response:
        families = text_string_to_metric_families(response.read().decode())
    found: dict[str, list[Sample]] = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.labels.get("run") == run:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
