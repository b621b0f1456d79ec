"""Parts that all pages share. Each page is one self-contained HTML file.

A page loads nothing, runs no script, and forbids the browser both by its own content policy.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from raylab.grid_metrics import LOSS, OBJECTIVE, VALIDATION
from raylab.report.charts.curves import History, learning_curves
from raylab.report.charts.theme import shortened
from raylab.report.published import shown_range
from raylab.report.tables import percent
from raylab.runs.run import Run

PAGE = "report.html"
"""Name of the page in a run directory."""
MONITOR = f"{VALIDATION}{OBJECTIVE}"
"""The metric that selects checkpoints unless the configuration says otherwise."""


def render(template: str, **content: Any) -> str:
    """Renders a page, a complete HTML document; all texts in `content` are escaped."""
    return _environment().get_template(template).render(content)


def write_page(run: Run, page: str) -> None:
    """Writes a page as `report.html` of a run; what UTF-8 cannot encode becomes `?`."""
    run.write_bytes(PAGE, page.encode(errors="replace"))


def curves(histories: Mapping[str, History], monitor: str) -> list[Markup]:
    """Draws the main validation metrics and both losses; nothing without epochs.

    Args:
        histories: Rows of epochs by name.
        monitor: The metric that selected the checkpoints.
    """
    shares = ("val_solve_rate", monitor, "val_grid_accuracy", "val_cell_accuracy")
    wanted = (*shares, "train_loss", f"{VALIDATION}{LOSS}")
    rows = [row for history in histories.values() for row in history]
    return [
        Markup(learning_curves(histories, metric, prefix=f"curve-{metric}"))
        for metric in dict.fromkeys(wanted)
        if any(row.get(metric) is not None for row in rows)
    ]


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 case` and `1,234 cases`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Joins names for a sentence; a list longer than `most` ends with the count of the rest."""
    if len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most} more"]
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("raylab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "range": shown_range,
        "shortened": shortened,
        "shell": shlex.join,
        "yaml": _as_yaml,
    }
    return environment


def _as_yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
