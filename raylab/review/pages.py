"""The pages as HTML, from the templates, and the files that they load."""

import functools
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from raylab.annotation.human.reviews import Reviews
from raylab.review.view import kind_in_words
from raylab.review.visits import Visit

STATIC = {
    "style.css": ("text/css", "raylab.report", "templates"),
    "review.css": ("text/css", "raylab.review", "static"),
    "review.js": ("text/javascript", "raylab.review", "static"),
}
"""Media type, package and folder of each file that pages load."""


def link(path: str, **query: object) -> str:
    """Returns a path with the parameters of the query that are not empty."""
    given = [f"{key}={value}" for key, value in query.items() if value]
    return f"{path}?{'&'.join(given)}" if given else path


def render(request: Request, template: str, status: int = 200, **content: Any) -> HTMLResponse:
    """Returns a page of the application that a request was sent to.

    Args:
        request: Has the visit, which begins if its forms have no token yet.
        template: Name of a file in `templates/`.
        status: Of the response.
        **content: Variables of the template.
    """
    reviews: Reviews = request.app.state.reviews
    visit: Visit = request.state.visit
    shown = {
        "run": reviews.run,
        "reviewer": getattr(request.state, "reviewer", ""),
        "csrf": visit.form_token,
        "here": request.url.path,
        "path": link,
        "roots": reviews.codebook.categories,
    }
    return HTMLResponse(_environment().get_template(template).render(**shown, **content), status)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("raylab.review"), PackageLoader("raylab.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["when"] = _when
    environment.filters["clock"] = _clock
    environment.filters["in_words"] = kind_in_words
    return environment


def _when(time: datetime | str) -> str:
    """Returns a time as people read it, in UTC; archived bodies hold it as text."""
    given = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{given.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _clock(time: datetime) -> str:
    """Returns a time of today or tomorrow, in UTC."""
    return f"{time.astimezone(UTC):%H:%M} UTC"


@functools.cache
def read_static(name: str) -> bytes:
    """Returns the content of a file, one of `STATIC`."""
    _, package, directory = STATIC[name]
    return (resources.files(package) / directory / name).read_bytes()
