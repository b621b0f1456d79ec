"""The quality of a benchmark as it is written into `quality.json`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from raylab.config.quality import Layout
from raylab.runs.records import Part, Record

QUALITY = "quality.json"


class QualityFigure(Part):
    """One metric of a benchmark.

    Attributes:
        value: None where it was not computed.
        interval: Ends of its 95 % interval; None where there is none.
        reason: Why it was not computed; None where it was.
    """

    value: float | None
    interval: tuple[float, float] | None
    reason: str | None


class FileCounts(Part):
    """Score files by what became of them.

    Attributes:
        read: Opened.
        cached: Known already.
        skipped: Unusable, of those opened or known.
    """

    read: int
    cached: int
    skipped: int


class SkippedFile(Part):
    """A score file that cannot be used, and why."""

    path: str
    reason: str


class TreeQuality(Part):
    """The quality of the benchmark that a score tree is of.

    Attributes:
        figures: By metric, in the order of `raylab.quality.metrics.METRICS`.
        no_intervals: Why no figure has an interval; None where figures have.
        models: Accuracy of each model in [0, 1], the mean over its generations.
        generations: The same by model and generation; empty for a tree without generations.
        priors: Accuracies of the models on each earlier benchmark, by its location.
        layout: `GENERATIONS` or `FLAT`.
        layout_reason: Why the tree was taken for that.
        files: Counted over the trees of the benchmark and its priors.
        skipped: The first 1000 of the files that cannot be used.
        warnings: What to know before the figures are used.
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
        """Brings values, intervals and reasons together by metric, as they were not at first."""
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
