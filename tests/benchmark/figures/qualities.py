"""Qualities of benchmarks, as they are measured, small."""

from typing import Any

from raylab.benchmark.config import Layout
from raylab.benchmark.figures.record import FileCounts, Quality, SkippedFile
from raylab.core.runs.records import Figure


def figure(
    value: float | None,
    interval: tuple[float, float] | None = None,
    reason: str | None = None,
    **more: Any,
) -> Figure:
    return Figure(value=value, interval=interval, reason=reason, **more)


def quality(**more: Any) -> Quality:
    """A quality of two models with one skipped file; `more` replaces fields."""
    skipped = SkippedFile(path="scores/champion/1/ab.json", reason="status is error")
    whole = Quality(
        figures={
            "difficulty": figure(0.1415, (0.1111, 0.1818)),
            "separability": figure(0.0213, reason="bootstrap=0"),
            "consistency": figure(0.9911, (0.99, 1.0), corrected=0.9987),
            "novelty": figure(None, reason="no prior benchmark was given"),
        },
        models={"champion": 0.8585, "small": 0.8159},
        file_counts={"champion": 850, "small": 425},
        generations={"champion": {"published": 0.86, "1": 0.857}, "small": {"1": 0.8159}},
        priors={"/runs/earlier": {"champion": 0.4321, "small": 0.4}},
        layout=Layout.GENERATIONS,
        layout_reason="as configured",
        files=FileCounts(read=1270, skipped=1),
        skipped=(skipped,),
        warnings=("only two models",),
    )
    return whole.model_copy(update=more)
