"""Records of runs."""

from typing import Any

from raylab.core.runs.run_record import Checkout, RunRecord


def run_record(**more: Any) -> RunRecord:
    """The record of a training that goes on; `more` replaces fields."""
    record = RunRecord(
        id="019a0123456789abcdef01",
        job="train",
        name="r",
        config={},
        config_hash="a1b2c3d4e5",
        argv=("jobs/train.py",),
        started="2026-05-01T10:00:00+00:00",
        versions={"ray": "2.60.0", "torch": None},
        git=Checkout(commit="d8b3196", dirty=True),
        host="h",
        cpus=4,
        executable="python",
    )
    return record.model_copy(update=more)
