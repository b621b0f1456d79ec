"""The pages as HTML, from the templates, and the files that they load."""

import functools
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from raylab.annotation.reviews import Reviews
from raylab.printable import printable
from raylab.review.view import kind_in_words

STATIC = {
    "style.css": ("text/css", "raylab.report", "templates"),
    "review.css": ("text/css", "raylab.review", "static"),
    "review.js": ("text/javascript", "raylab.review", "static"),
}
"""Media type, package and folder of each file that pages load."""


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
        "path": link,
        "roots": reviews.codebook.categories,
    }
    return HTMLResponse(_environment().get_template(template).render(**shown, **content), status)


@functools.cache
def read_static(name: str) -> bytes:
    """Returns the content of a file, one of `STATIC`."""
    _, package, directory = STATIC[name]
    return (resources.files(package) / directory / name).read_bytes()


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("raylab.review"), PackageLoader("raylab.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["when"] = _when
    environment.filters["clock"] = _clock
    environment.filters["in_words"] = kind_in_words
    return environment


def _printable(value: object) -> object:
    """Makes every text printable that a template shows; markup is made of such text."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _when(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%H:%M} UTC"
