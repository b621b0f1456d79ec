"""What requests to the review page bring along: the run, the reviewer, and filled-in forms."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Form, Path, Query, Request
from starlette.exceptions import HTTPException

from raylab.annotation.human.open_cases import Typed
from raylab.annotation.human.reviews import Reviews
from raylab.review.visits import Visit

KIND = r"^[\w-]{0,60}$"

Number = Annotated[int, Path(ge=1, lt=2**63)]
"""Sequence of a case in its run."""
Place = Annotated[int, Query(ge=0, lt=2**63)]
"""The same in a query; 0 is none."""
Kind = Annotated[str, Query(pattern=KIND)]
FilledKind = Annotated[str, Form(pattern=KIND)]


class SignedOut(Exception):
    """A request without a session, or with one that has ended; never leaves the page."""


def reviews_of(request: Request) -> Reviews:
    """Returns the cases of the run that the page is about."""
    return request.app.state.reviews


def visit_of(request: Request) -> Visit:
    """Returns the visit of the browser."""
    return request.state.visit


def _reviewer(request: Request) -> str:
    sessions = reviews_of(request).sessions()
    reviewer = sessions.reviewer(visit_of(request).session_key, datetime.now(UTC))
    if reviewer is None:
        raise SignedOut
    request.state.reviewer = reviewer
    return reviewer


def _require_own_form(request: Request, csrf: Annotated[str, Form()] = "") -> None:
    if not visit_of(request).has_token(csrf):
        raise HTTPException(403, "The form is out of date: go back, reload it and send it again.")


def _typed(
    choice: Annotated[str, Form()] = "",
    code: Annotated[str, Form()] = "",
    justification: Annotated[str, Form()] = "",
    page: Annotated[str, Form(max_length=64)] = "",
    edit: Annotated[int, Form(ge=0, lt=2**63)] = 1,
) -> Typed:
    # Forms send line breaks as CR LF.
    return Typed(choice, code, justification.replace("\r\n", "\n"), page, edit)


OfRun = Annotated[Reviews, Depends(reviews_of)]
Reviewer = Annotated[str, Depends(_reviewer)]
Filled = Annotated[Typed, Depends(_typed)]
OWN_FORM = [Depends(_require_own_form)]
