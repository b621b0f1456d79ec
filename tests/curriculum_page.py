"""Writes the table and the picture of the curriculum's page.

python -m tests.curriculum_page

For each family the table tells how many cells the best baseline gets right on
`PAIRS` pairs of each of its tasks at level 1, with the default keys; none solves a grid.
"""

import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from raylab.arc.baselines import count_baselines
from raylab.arc.config.sections import CurriculumConfig, DataConfig, ObjectiveConfig, TaskSource
from raylab.arc.data.curriculum.families import FAMILIES
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Grid, Pair, group_indices, store_pairs
from raylab.arc.metrics import group_metrics, sum_by_task
from raylab.core.page.charts import ARC_PALETTE, MUTED, drawing

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "raylab" / "arc" / "data" / "curriculum" / "README.md"
PICTURE = ROOT / "jobs" / "pictures" / "curriculum.png"
LABEL = 1.6
"""Width of the name of a task, where each grid has a place of 1 by 1."""
PAIR = 2.5
"""Width of a pair."""
ROW = 1.15
INCHES = 0.52
PALETTE = ListedColormap(ARC_PALETTE)
PAIRS = 100
HEAD = "| family | task | known only from the demonstrations | cells |\n| --- | --- | --- | --- |\n"
FIGURES = ("cell_accuracy", "grid_accuracy", "solve_rate")


def drawn(pairs: int, *levels: int) -> DataConfig:
    return DataConfig(
        source=TaskSource.CURRICULUM,
        pairs_per_task=pairs,
        curriculum=CurriculumConfig.model_validate({"levels": levels}),
    )


def best_baselines() -> dict[str, list[float]]:
    """The figures of the best baseline, each for itself, by family."""
    tasks = load_tasks(drawn(PAIRS, 1))
    store = store_pairs(tasks)
    names, group_of_task = group_indices(store, group_tasks(tasks))
    weights = ObjectiveConfig().model_dump()
    by_baseline = [
        group_metrics(
            sum_by_task(counts, store.task_of, len(tasks)),
            names,
            torch.from_numpy(group_of_task),
            weights,
        )
        for counts in count_baselines(store, store.pairs).values()
    ]
    return {
        name: [
            max(baseline[f"{name}-1"].metrics[figure] for baseline in by_baseline)
            for figure in FIGURES
        ]
        for name in FAMILIES
    }


def table() -> str:
    """The table of all families, in Markdown."""
    baselines = best_baselines()
    rows = (
        (name, family.says, family.rule, f"{100 * baselines[name][0]:.0f} %")
        for name, family in FAMILIES.items()
    )
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def picture() -> bytes:
    """The first pair of the first task of each family at each level, as a PNG."""
    tasks = load_tasks(drawn(1, 1, 2, 3))
    pairs = {
        name: [
            next(task.pairs[0] for task in tasks if task.group == f"{name}-{level}")
            for level in (1, 2, 3)
        ]
        for name in FAMILIES
    }
    buffer = BytesIO()
    tasks_figure(pairs).savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def tasks_figure(tasks: Mapping[str, Sequence[Pair]], columns: int = 2) -> Figure:
    """Returns a figure of the pairs of each task, input beside output in one scale.

    Args:
        tasks: The pairs to draw of each task, by its name; at least one, of as many each.
        columns: Columns of tasks.
    """
    pairs = max(map(len, tasks.values()))
    rows = -(-len(tasks) // columns)
    width = LABEL + pairs * PAIR
    with drawing("tasks"):
        size = INCHES * width * columns, INCHES * ROW * rows
        figure = Figure(figsize=size, layout="constrained", facecolor="none")
        axes = figure.add_subplot()
        for index, (name, shown) in enumerate(tasks.items()):
            column, row = divmod(index, rows)
            left, middle = width * column, ROW * row + ROW / 2
            axes.text(left, middle, name, va="center", size=8)
            for number, pair in enumerate(shown):
                _draw_pair(axes, pair, left + LABEL + number * PAIR, middle)
        axes.set(xlim=(0, width * columns), ylim=(ROW * rows, 0), aspect="equal")
        axes.axis("off")
        # Text is laid out in the style that it is drawn in.
        figure.draw_without_rendering()
    return figure


def _draw_pair(axes: Axes, pair: Pair, left: float, middle: float) -> None:
    cell = 1 / max(pair.input.shape + pair.output.shape)
    _draw_grid(axes, pair.input, left, middle, cell)
    axes.text(left + 1.125, middle, "→", ha="center", va="center", size=7, color=MUTED)
    _draw_grid(axes, pair.output, left + 1.25, middle, cell)


def _draw_grid(axes: Axes, grid: Grid, left: float, middle: float, cell: float) -> None:
    top = middle - cell * grid.shape[0] / 2
    axes.pcolormesh(
        left + cell * np.arange(grid.shape[1] + 1),
        top + cell * np.arange(grid.shape[0] + 1),
        grid,
        cmap=PALETTE,
        vmin=-0.5,
        vmax=len(ARC_PALETTE) - 0.5,
        edgecolors="#666666",
        linewidth=0.25,
    )


if __name__ == "__main__":
    text = PAGE.read_text()
    before, rest = text.split(HEAD)
    PAGE.write_text(before + table() + re.sub(r"\A(\|.*\n)*", "", rest))
    PICTURE.write_bytes(picture())
