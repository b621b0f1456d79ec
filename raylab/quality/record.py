"""The record of a benchmark's quality: `quality.json`."""

from collections.abc import Mapping
from typing import ClassVar

from raylab.config.quality import Layout
from raylab.runs.records import Part, Record

QUALITY = "quality.json"


class QualityFigure(Part):
    """One metric of a benchmark.

    Attributes:
        value: The figure; None if it was not computed.
        corrected: The figure without what the chance of the tasks drawn adds to it; None if that is
            not known.
        interval: Ends of its 95 % interval over tasks; None if there is none. It is around the
            corrected figure and may leave the value out.
        reason: The reason why it was not computed; None if it was.
        no_interval: The reason why it has no interval; None if it has one or was not computed.
    """

    value: float | None = None
    corrected: float | None = None
    interval: tuple[float, float] | None = None
    reason: str | None = None
    no_interval: str | None = None


class FileCounts(Part):
    """Numbers of score files that were opened, and of those among them that cannot be used."""

    read: int
    skipped: int


class SkippedFile(Part):
    """A score file that cannot be used, and the reason."""

    path: str
    reason: str


class TreeQuality(Part):
    """The quality of the benchmark of a score tree.

    Attributes:
        figures: By metric, in the order of `raylab.quality.metrics.METRICS`.
        models: Accuracy of each model in [0, 1], the mean over its generations.
        file_counts: Number of usable files of each model.
        generations: Accuracies by model and generation; empty for a tree without generations.
        priors: Accuracies of the models on each earlier benchmark, by its location.
        layout: `GENERATIONS` or `FLAT`.
        layout_reason: The reason for this layout.
        files: Counts over the trees of the benchmark and its priors.
        skipped: The first 1000 files that cannot be used.
        warnings: Cautions for the use of the figures.
    """

    figures: Mapping[str, QualityFigure]
    models: Mapping[str, float]
    file_counts: Mapping[str, int]
    generations: Mapping[str, Mapping[str, float]]
    priors: Mapping[str, Mapping[str, float]]
    layout: Layout
    layout_reason: str
    files: FileCounts
    skipped: tuple[SkippedFile, ...]
    warnings: tuple[str, ...]


class Quality(TreeQuality, Record):
    """The content of `quality.json`.

    Attributes:
        others: Quality of other score trees that a pipeline measured beside its own, by location.
    """

    file: ClassVar[str] = QUALITY
    version: ClassVar[int] = 3

    others: Mapping[str, TreeQuality] = {}
