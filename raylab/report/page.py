"""Pages: a head, and sections of blocks, which one template renders.

Each page is one self-contained HTML file. It loads nothing, runs no script, and forbids the browser
both by its own content policy.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from raylab.grid_metrics import LOSS, OBJECTIVE, VALIDATION
from raylab.printable import printable
from raylab.report.charts import SERIES, History, learning_curves
from raylab.report.table import Table
from raylab.runs.run import Run
from raylab.runs.run_record import RunRecord

PAGE = "report.html"
"""Name of the page in a run directory."""
MONITOR = f"{VALIDATION}{OBJECTIVE}"
"""The metric that selects checkpoints unless the configuration says otherwise."""


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"

    text: str


@dataclass(frozen=True)
class Notes:
    """Sentences to read with care."""

    kind: ClassVar[str] = "notes"

    texts: Sequence[str]


@dataclass(frozen=True)
class Charts:
    """Charts side by side, with a heading each if `titles` are given, and a caption."""

    kind: ClassVar[str] = "charts"

    charts: Sequence[Markup]
    caption: str = ""
    titles: Sequence[str] = ()


@dataclass(frozen=True)
class Code:
    """A command or the content of a file."""

    kind: ClassVar[str] = "code"

    text: str


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"

    facts: Mapping[str, str]


@dataclass(frozen=True)
class Fold:
    """Blocks below a summary that opens them."""

    kind: ClassVar[str] = "fold"

    summary: str
    blocks: "Sequence[Block]"
    opened: bool = False


@dataclass(frozen=True)
class Fragment:
    """What a template of its own has rendered."""

    kind: ClassVar[str] = "fragment"

    html: Markup


Block = str | Table | Heading | Notes | Charts | Code | Facts | Fold | Fragment
"""A part of a section; a text is a paragraph, in which backticks enclose code."""


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        id: Its place in links.
        title: Its heading.
        blocks: Its content.
        short: Its title in the list of contents; empty for the same.
    """

    id: str
    title: str
    blocks: Sequence[Block]
    short: str = ""


@dataclass(frozen=True)
class Tile:
    """A large number at the top of a page."""

    value: str
    label: str
    note: str


@dataclass(frozen=True)
class Page:
    """Content of a page.

    Attributes:
        kind: The kind of run, in words.
        name: Name of the run.
        uri: Its directory.
        lead: Sentences that sum it up, at least one.
        sections: In the order shown.
        notes: Sentences to read with care.
        tiles: Large numbers.
        badge: A word beside the title; empty without one.
        foot: A sentence at the end; empty without one.
    """

    kind: str
    name: str
    uri: str
    lead: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    badge: str = ""
    foot: str = ""


def render(page: Page) -> str:
    """Renders a page, a complete HTML document; all its texts are made printable and escaped."""
    return _environment().get_template("page.html").render(page=page)


def fragment(template: str, **content: Any) -> Fragment:
    """Renders a template for a block of its own kind."""
    return Fragment(Markup(_environment().get_template(template).render(content)))


def write_page(run: Run, page: str) -> None:
    """Writes a page as `report.html` of a run."""
    (run / PAGE).write(page.encode())


def curves(histories: Mapping[str, History], monitor: str) -> Charts:
    """Draws the main validation metrics and both losses; nothing without epochs.

    Args:
        histories: Rows of epochs by name.
        monitor: The metric that selected the checkpoints.
    """
    shares = ("val_solve_rate", monitor, "val_grid_accuracy", "val_cell_accuracy")
    rows = [row for history in histories.values() for row in history]
    charts = [
        learning_curves(histories, metric, prefix=f"curve-{metric}")
        for metric in dict.fromkeys((*shares, "train_loss", f"{VALIDATION}{LOSS}"))
        if any(row.get(metric) is not None for row in rows)
    ]
    caption = (
        "Losses and validation metrics after each epoch; the large mark is the best epoch on that "
        "metric."
    )
    if len(histories) > len(SERIES):
        caption += f" Of {len(histories)} curves the best is in colour, the others are grey."
    return Charts(charts, caption)


def provenance(uri: str, record: RunRecord, facts: Mapping[str, str] | None = None) -> Section:
    """Returns the section of what made a run, with further facts of its kind."""
    return Section(
        "provenance",
        "Provenance",
        [
            Facts({"run": uri, **dict(_facts(record)), **(facts or {})}),
            Heading("Command"),
            Code(shlex.join(record.argv)),
            Fold("Resolved configuration", [Code(as_yaml(record.config))]),
        ],
    )


def as_yaml(content: Any) -> str:
    """Returns JSON values as YAML."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    if record.id:
        yield "id", record.id
    yield "configuration", record.config_hash
    yield "started", record.started
    if record.finished:
        yield "finished", record.finished
    dirty = " with uncommitted changes" if record.git and record.git.dirty else ""
    yield "commit", f"{record.git.commit}{dirty}" if record.git else "not known"
    versions = (f"{package} {number or 'absent'}" for package, number in record.versions.items())
    yield "versions", ", ".join(versions)
    yield "host", f"{record.host}, {record.cpus} CPUs"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("raylab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters["prose"] = _as_prose
    return environment


def _finalized(value: Any) -> Any:
    """Makes a text printable before it is escaped; markup is made of such texts."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _as_prose(text: str) -> Markup:
    """Returns a text with what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))
