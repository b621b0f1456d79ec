"""Figures of a diagnosis: a value with its interval, or the reason why there is none."""

from raylab.quality.record import QualityFigure


class Finding(QualityFigure):
    """A figure and what it says."""

    sentence: str
    """A sentence or two for readers who do not know the statistics."""


def make_figure(
    value: float, interval: tuple[float, float] | None, sentence: str, no_interval: str = ""
) -> Finding:
    """Returns a figure of a value and its 95 % interval, or the reason why it has no interval."""
    return Finding(
        value=value,
        interval=interval,
        no_interval=None if interval else no_interval,
        sentence=sentence,
    )


def missing_figure(name: str, reason: str) -> Finding:
    """Returns a figure that cannot be computed, for this reason."""
    return Finding(reason=reason, sentence=f"{name} cannot be computed: {reason}.")


def points(share: float) -> str:
    """Returns a difference of shares in percentage points."""
    return f"{100 * share:.1f} points"
