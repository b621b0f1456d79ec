"""The record of a benchmark's quality: `quality.json`."""

from collections.abc import Mapping
from typing import ClassVar

from raylab.config.quality import Layout
from raylab.runs.records import Part, Record

QUALITY = "quality.json"


class QualityFigure(Part):
    """One metric of a benchmark."""

    value: float | None = None
    corrected: float | None = None
    """The figure without what the chance of the tasks drawn adds to it, where that is known."""
    interval: tuple[float, float] | None = None
    """Ends of its 95 % interval over tasks. It is around the corrected figure and may leave the
    value out."""
    reason: str | None = None
    """The reason why it was not computed; None if it was."""
    no_interval: str | None = None
    """The reason why it has no interval; None if it has one or was not computed."""


class FileCounts(Part):
    """Numbers of score files that were opened, and of those among them that cannot be used."""

    read: int
    skipped: int


class SkippedFile(Part):
    """A score file that cannot be used, and the reason."""

    path: str
    reason: str


class TreeQuality(Part):
    """The quality of the benchmark of a score tree; accuracies are in [0, 1]."""

    figures: Mapping[str, QualityFigure]
    """By metric, in the order of `raylab.quality.metrics.METRICS`."""
    models: Mapping[str, float]
    """Accuracy of each model, the mean over its generations."""
    file_counts: Mapping[str, int]
    """Number of usable files of each model; of items where the layout is `NAMED`."""
    generations: Mapping[str, Mapping[str, float]]
    """Accuracies by model and generation; empty for a tree without generations."""
    priors: Mapping[str, Mapping[str, float]]
    """Accuracies of the models on each earlier benchmark, by its location."""
    layout: Layout
    layout_reason: str
    files: FileCounts
    """Counts over the trees of the benchmark and its priors; of scores of items where the layout
    is `NAMED`."""
    skipped: tuple[SkippedFile, ...]
    """The first 1000 files and directories that cannot be used."""
    warnings: tuple[str, ...]


class Quality(TreeQuality, Record):
    """The content of `quality.json`."""

    file: ClassVar[str] = QUALITY
    version: ClassVar[int] = 3

    others: Mapping[str, TreeQuality] = {}
    """Quality of other score trees that a pipeline measured beside its own, by location."""
