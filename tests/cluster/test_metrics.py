"""What is recorded when Ray refuses it."""

import logging

import pytest

from raylab.cluster.metrics import CASES, EPOCH, TOKENS, Meters
from tests.cluster.scrape import exported

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def test_a_metric_that_ray_refuses_fails_nothing_and_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meters = Meters("refused")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            meters.add(CASES, 2)
            meters.set(EPOCH, "three", training="t")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("metric raylab_cases is not recorded: Missing value for tag key(s)")
    assert told[1].startswith("metric raylab_training_epoch is not recorded: value must be")


def test_counts_add_up_and_nothing_may_be_added() -> None:
    meters = Meters("added")
    for amount in (0, 3, 0.5):
        meters.add(TOKENS, amount, endpoint="e", model="m", direction="prompt")
    exported("added", {"ray_raylab_llm_tokens_total": 3.5})
