"""Pages: a head and sections of blocks, rendered by one template.

Each page is one self-contained HTML file. It loads nothing and runs no script; its content policy
forbids both. The terminal prints tables of the same pages.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from raylab.core.page.table import Table
from raylab.core.printable import printable
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord

PAGE = "report.html"
"""Name of the page in a run directory."""

Block = str | Table | Markup
"""A part of a section; a text is a paragraph, in which backticks enclose code."""


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        page_only: True if the terminal does not print its tables.
    """

    id: str
    title: str
    blocks: Sequence[Block]
    page_only: bool = False


@dataclass(frozen=True)
class Page:
    """Content of a page.

    Attributes:
        kind: The kind of run, in words.
        lead: Sentences that sum it up, at least one.
        sections: In the order shown.
        notes: Caveats.
        badge: A word beside the title; empty without one.
    """

    kind: str
    name: str
    uri: str
    lead: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    badge: str = ""

    @property
    def tables(self) -> Iterator[Table]:
        """The tables for the terminal."""
        for section in self.sections:
            if not section.page_only:
                yield from (block for block in section.blocks if isinstance(block, Table))


def render(page: Page) -> str:
    """Renders a page as a complete HTML document; all texts are made printable and escaped."""
    return _environment().get_template("page.html").render(page=page)


def write_page(run: Run, page: Page, name: str = PAGE) -> None:
    """Writes a page of a run, by default its `report.html`."""
    (run / name).write(render(page).encode())


def block(macro: str, *content: Any) -> Markup:
    """Renders a macro of `blocks.html`, such as `heading`, for a section."""
    macros = _environment().get_template("blocks.html").module
    return Markup(getattr(macros, macro)(*content))


def provenance(uri: str, record: RunRecord, facts: Mapping[str, str] | None = None) -> Section:
    """Returns the section on the origin of a run, with further facts."""
    config = yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True)
    return Section(
        "provenance",
        "Provenance",
        [
            block("facts", {"run": uri, **facts_of(record), **(facts or {})}),
            block("heading", "Command"),
            block("code", shlex.join(record.argv)),
            block("fold", "Resolved configuration", [block("code", config)]),
        ],
    )


def facts_of(record: RunRecord) -> dict[str, str | None]:
    """Returns the origin of a run: its id, times, host, commit, versions and configuration."""
    return {
        "id": record.id,
        "started": record.started,
        "finished": record.finished,
        "host": f"{record.host}, {record.cpus} CPUs",
        "commit": record.git and record.git.commit,
        "uncommitted changes": "yes" if record.git and record.git.dirty else None,
        **record.versions,
        "configuration": record.config_hash,
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("raylab.core.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {"prose": _as_prose, "breakable": _as_breakable}
    return environment


def _finalize(value: Any) -> Any:
    """Makes a text printable before it is escaped; markup is already."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _as_prose(text: str) -> Markup:
    """Returns a text with what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _as_breakable(text: str) -> Markup:
    """Returns text that may break after underscores and slashes, but not before a percent sign."""
    shown = str(escape(printable(text))).replace(" %", "&nbsp;%")
    return Markup(re.sub(r"(?<=[_/])(?=\w)", "<wbr>", shown))
