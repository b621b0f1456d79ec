"""The pages as HTML, from the templates, with source code coloured."""

import functools
from typing import Any, cast

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from raylab.annotation.reviews import Reviews
from raylab.codebook import Codebook
from raylab.printable import printable
from raylab.report.annotation import KINDS

LONGEST_HIGHLIGHTED = 100_000
LONGEST_LINE_HIGHLIGHTED = 2_000
"""Characters; what is longer is shown plain, because colouring it takes seconds."""


def link(path: str, **query: object) -> str:
    """Returns a path with the parameters of the query that are not empty."""
    filled = [f"{key}={value}" for key, value in query.items() if value]
    return f"{path}?{'&'.join(filled)}" if filled else path


def render(request: Request, template: str, status: int = 200, **content: Any) -> HTMLResponse:
    """Returns a page of the application that a request was sent to.

    Args:
        request: Has the reviewer's session.
        template: Name of a file in `templates/`.
        status: Of the response.
        **content: Variables of the template.
    """
    reviews: Reviews = request.app.state.reviews
    shown = {
        "run": reviews.run,
        "run_id": reviews.run_id,
        "reviewer": request.session.get("reviewer", ""),
        "here": link(request.url.path, kind=request.query_params.get("kind", "")),
    }
    page = _environment(reviews.codebook).get_template(template)
    return HTMLResponse(page.render(**shown, **content), status)


@functools.lru_cache(256)
def description_markup(text: str, source: bool) -> Markup:
    """Returns a description as markup: escaped, and coloured if it is source of bearable size."""
    text = printable(text)
    longest = max(map(len, text.splitlines()), default=0)
    if not source or len(text) > LONGEST_HIGHLIGHTED or longest > LONGEST_LINE_HIGHLIGHTED:
        return escape(text)
    formatter = HtmlFormatter[str](nowrap=True)
    return Markup(highlight(text, PythonLexer(stripnl=False), formatter))


@functools.cache
def _environment(codebook: Codebook) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("raylab.review"), PackageLoader("raylab.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = cast(dict[str, Any], environment.globals)
    shared.update(path=link, roots=codebook.categories, kinds=KINDS)
    return environment


def _printable(value: object) -> object:
    """Makes every text printable that a template shows; markup is made of such text."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
