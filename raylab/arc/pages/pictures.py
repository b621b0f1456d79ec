"""Pictures of ARC tasks and of the answers of models to them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import eq
from typing import NamedTuple

from markupsafe import Markup

from raylab.arc.records import Example, GridRows
from raylab.core.page.charts import SERIES, grid_svg
from raylab.core.page.page import Block, block

SHOWN_MODELS = len(SERIES)
"""Most models in pictures: the best on the metric."""


class Picture(NamedTuple):
    """An ARC grid with its caption."""

    svg: Markup
    label: str
    note: str
    solved: bool | None = None


def picture_blocks(examples: Iterable[Example], shown: Sequence[str]) -> list[Block]:
    """Returns the pictures of tasks with the answers that are `shown`, and how to read them."""
    text = (
        "The models choose the size and every cell themselves (free-running). A dot marks a wrong "
        "cell."
    )
    return [text, block("pictures", [(e.task, list(_pictures(e, shown))) for e in examples])]


def _pictures(example: Example, shown: Sequence[str]) -> Iterator[Picture]:
    """Yields input and target, then each prediction that is shown."""
    for label, grid in (("input", example.input), ("target", example.target)):
        title = f"{label} of task {example.task}, {_size(grid)}"
        yield Picture(grid_svg(grid, title), label, _size(grid))
    for name, answer in ((name, example.predictions.get(name)) for name in shown):
        if answer is not None:
            title = f"prediction of {name} for task {example.task}"
            svg = grid_svg(answer.grid, title, target=example.target)
            yield Picture(svg, name, _score(answer.grid, example.target), answer.solved)


def _size(grid: GridRows) -> str:
    return f"{len(grid)} by {len(grid[0]) if len(grid) else 0}"


def _score(grid: GridRows, target: GridRows) -> str:
    if _size(grid) != _size(target):
        return f"{_size(grid)} instead of {_size(target)}"
    ours, theirs = (list(chain.from_iterable(rows)) for rows in (grid, target))
    right = list(map(eq, ours, theirs))
    return f"{sum(right)} of {len(right)} cells right"
