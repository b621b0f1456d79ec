"""Published runs, shown beside ours with their protocol and their definitions.

The figures and their sources are in `data/published_runs.json`. All are teacher-forced, on re-arc;
none is a free-running solve rate.
"""

from functools import cache
from importlib.resources import files

from raylab.runs.records import Part

DATA_SOURCE = "re_arc"
"""The `data.source` of the published runs."""
EPOCHS = 100
"""Epochs of the published recipe; its logged runs ended before."""

Range = tuple[float, float]
"""The lowest and the highest value of several runs."""


class PublishedRun(Part):
    """A published run, or several of one kind; figures are in [0, 1], None where no log has one."""

    run: str
    data: str
    protocol: str
    epochs: str
    grid_accuracy: Range
    cell_accuracy: Range
    change_recall: Range | None
    outcome: str


class PublishedClaim(Part):
    """A published figure that is not a logged run, and what is known of it."""

    source: str
    claim: str
    found: str


class PublishedRuns(Part):
    """All published figures with their source and definitions."""

    source: str
    definitions: str
    runs: tuple[PublishedRun, ...]
    claims: tuple[PublishedClaim, ...]


@cache
def published_runs() -> PublishedRuns:
    """Returns the figures of the packaged file."""
    content = (files("raylab.report") / "data" / "published_runs.json").read_bytes()
    return PublishedRuns.model_validate_json(content)


def shown_range(values: Range | None) -> str:
    """Returns one percentage, or the lowest and the highest; a dash without any."""
    if values is None:
        return "-"
    low, high = (f"{100 * value:.4g}" for value in values)
    return f"{low} %" if low == high else f"{low} to {high} %"
