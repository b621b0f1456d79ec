"""The record of a benchmark's quality: `quality.json`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from raylab.config.quality import Layout
from raylab.runs.records import Part, Record

QUALITY = "quality.json"


class QualityFigure(Part):
    """One metric of a benchmark.

    Attributes:
        value: The figure; None if it was not computed.
        interval: Ends of its 95 % interval; None if there is none.
        reason: The reason why it was not computed; None if it was.
    """

    value: float | None
    interval: tuple[float, float] | None
    reason: str | None


class FileCounts(Part):
    """Numbers of score files by outcome.

    Attributes:
        read: Files opened.
        cached: Files known from the score cache.
        skipped: Unusable files among those opened or cached.
    """

    read: int
    cached: int
    skipped: int


class SkippedFile(Part):
    """A score file that cannot be used, and the reason."""

    path: str
    reason: str


class TreeQuality(Part):
    """The quality of the benchmark of a score tree.

    Attributes:
        figures: By metric, in the order of `raylab.quality.metrics.METRICS`.
        no_intervals: The reason why no figure has an interval; None if there are intervals.
        models: Accuracy of each model in [0, 1], the mean over its generations.
        generations: The same by model and generation; empty for a tree without generations.
        priors: Accuracies of the models on each earlier benchmark, by its location.
        layout: `GENERATIONS` or `FLAT`.
        layout_reason: The reason for this layout.
        files: Counts over the trees of the benchmark and its priors.
        skipped: The first 1000 files that cannot be used.
        warnings: Cautions for the use of the figures.
    """

    figures: Mapping[str, QualityFigure]
    no_intervals: str | None
    models: Mapping[str, float]
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

    others: Mapping[str, TreeQuality] = {}

    @classmethod
    def of(cls, tree: TreeQuality, others: Mapping[str, TreeQuality] | None = None) -> "Quality":
        """Returns the quality of a tree, with that of others beside it."""
        return cls(**dict(tree), others=others or {})

    @classmethod
    def migrated(cls, content: dict[str, Any], version: int) -> dict[str, Any] | None:
        """Groups values, intervals and reasons by metric; the first version kept them apart."""
        if version != 0:
            return None
        others: dict[str, dict[str, Any]] = content.pop("others", {})
        return {
            **_tree_of_figures(content),
            "others": {location: _tree_of_figures(other) for location, other in others.items()},
        }


def _tree_of_figures(content: dict[str, Any]) -> dict[str, Any]:
    intervals: dict[str, Any] = content.pop("intervals", {})
    reasons: dict[str, str] = content.pop("reasons", {})
    figures = {
        name: {"value": content.pop(name, None), "interval": of, "reason": reasons.get(name)}
        for name, of in intervals.items()
    }
    return {"figures": figures, "no_intervals": reasons.get("intervals"), **content}
