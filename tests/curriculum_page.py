"""Writes the table and the picture of the curriculum's page.

python -m tests.curriculum_page

For each family the table tells what the rules that learn nothing reach on `PAIRS` pairs of each of
its tasks at level 1, with the default keys.
"""

import re
from pathlib import Path

import numpy as np

from raylab.arc.comparators.rules import group_rule_metrics
from raylab.arc.data.batching import group_indices, store_pairs
from raylab.arc.data.curriculum.registry import FAMILIES
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.config.arc import CurriculumConfig, DataConfig, ObjectiveConfig, TaskSource
from raylab.report.charts.tasks import tasks_figure
from raylab.report.charts.theme import as_png

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "raylab" / "arc" / "data" / "curriculum" / "README.md"
PICTURE = ROOT / "jobs" / "pictures" / "curriculum.png"
PAIRS = 100
HEAD = (
    "| family | its tasks | what the demonstrations show | cells | grids | solved |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)
FIGURES = ("cell_accuracy", "grid_accuracy", "solve_rate")


def drawn(pairs: int, *levels: int) -> DataConfig:
    return DataConfig(
        source=TaskSource.CURRICULUM,
        pairs_per_task=pairs,
        curriculum=CurriculumConfig.model_validate({"levels": levels}),
    )


def best_rules() -> dict[str, list[float]]:
    """The figures of the best rule that learns nothing, each for itself, by family."""
    tasks = load_tasks(drawn(PAIRS, 1))
    store = store_pairs(tasks)
    names, group_of_task = group_indices(store, group_tasks(tasks))
    pairs = np.arange(len(store.task_of))
    weights = ObjectiveConfig().model_dump()
    of_groups = group_rule_metrics(store, pairs, weights, names, group_of_task)
    return {
        name: [max(rule[figure] for rule in of_groups[f"{name}-1"].values()) for figure in FIGURES]
        for name in FAMILIES
    }


def table() -> str:
    """The table of all families, in Markdown."""
    rules = best_rules()
    rows = (
        (name, family.says, family.rule, *(f"{100 * value:.0f} %" for value in rules[name]))
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
    return as_png(tasks_figure(pairs))


if __name__ == "__main__":
    text = PAGE.read_text()
    before, rest = text.split(HEAD)
    PAGE.write_text(before + table() + re.sub(r"\A(\|.*\n)*", "", rest))
    PICTURE.write_bytes(picture())
