"""The pages of an audit: drawn cases without anything that the protocol or a model said of them."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from raylab.annotation.human.audit_sample import DrawnCase
from raylab.annotation.human.open_cases import UndecidedError
from raylab.annotation.human.reviews import Reviews
from raylab.errors import LeaseError
from raylab.review.forms import OWN_FORM, Filled, Number, OfRun, Place, Reviewer
from raylab.review.pages import render
from raylab.review.view import read_own, shown_description

LISTED = 50
"""Drawn cases that are listed at a time; more follow when these have codes."""
AUDIT_PAGES = APIRouter(prefix="/audit", default_response_class=HTMLResponse)


@AUDIT_PAGES.get("")
def audit(request: Request, reviews: OfRun, reviewer: Reviewer) -> Response:
    """Shows the drawn cases without a code, and the reviewer's own codes."""
    waiting = reviews.audit.waiting()
    return render(
        request,
        "audit.html",
        drawn=reviews.audit.drawn(),
        total=len(waiting),
        cases=reviews.audit.cases(waiting[:LISTED], reviewer),
        coded=reviews.audit.coded_by(reviewer),
    )


@AUDIT_PAGES.get("/next")
def next_drawn(reviews: OfRun, reviewer: Reviewer, after: Place = 0) -> Response:
    """Goes on to the next drawn case that nobody works on."""
    return _to_next(reviews, reviewer, after)


@AUDIT_PAGES.get("/{case}")
def drawn_case(request: Request, reviews: OfRun, reviewer: Reviewer, case: Number) -> Response:
    """Shows a drawn case, and keeps it for the reviewer while nobody else works on it."""
    return _page(request, reviews.audit.open(case, reviewer), reviewer)


@AUDIT_PAGES.post("/{case}/draft", dependencies=OWN_FORM)
def save_code_draft(
    request: Request, reviews: OfRun, reviewer: Reviewer, case: Number, typed: Filled
) -> Response:
    """Keeps what is typed and the case, and says how the code reads."""
    opened = replace(reviews.audit.save(case, reviewer, typed), typed=typed)
    return render(request, "state.html", **_state(reviews, opened, reviewer))


@AUDIT_PAGES.post("/{case}/skip", dependencies=OWN_FORM)
def skip_drawn(reviews: OfRun, reviewer: Reviewer, case: Number, typed: Filled) -> Response:
    """Leaves a case to others, with what was typed kept, and goes on to the next."""
    reviews.audit.save(case, reviewer, typed)
    reviews.audit.give_back(case, reviewer)
    return _to_next(reviews, reviewer, case)


@AUDIT_PAGES.post("/{case}/code", dependencies=OWN_FORM)
def code_case(
    request: Request, reviews: OfRun, reviewer: Reviewer, case: Number, typed: Filled
) -> Response:
    """Archives a code and goes on to the next case."""
    try:
        reviews.audit.submit(case, reviewer, typed)
    except UndecidedError as error:
        opened = reviews.audit.open(case, reviewer)
        return _page(request, opened, reviewer, 422, problems=error.problems)
    except LeaseError as error:
        return _page(request, reviews.audit.open(case, reviewer), reviewer, 409, lost=str(error))
    return _to_next(reviews, reviewer, case)


@AUDIT_PAGES.post("/{case}/undo", dependencies=OWN_FORM)
def undo_code(reviews: OfRun, reviewer: Reviewer, case: Number) -> Response:
    """Takes the reviewer's own code back and opens the case again."""
    reviews.audit.undo(case, reviewer)
    return RedirectResponse(f"/audit/{case}", 303)


def _page(
    request: Request,
    opened: DrawnCase,
    reviewer: str,
    status: int = 200,
    problems: Mapping[str, str] | None = None,
    lost: str = "",
) -> Response:
    reviews: Reviews = request.app.state.reviews
    return render(
        request,
        "audit_case.html",
        status,
        case=opened,
        description=shown_description(opened.description, opened.source),
        seconds=reviews.lease_seconds,
        problems=problems or {},
        lost=lost,
        page=secrets.token_urlsafe(8),
        **_state(reviews, opened, reviewer),
    )


def _state(reviews: Reviews, opened: DrawnCase, reviewer: str) -> dict[str, Any]:
    """Returns the part of a case's page that changes while a reviewer types."""
    return {
        "waits": opened.coded is None,
        "pending": None,
        "lease": opened.lease,
        "holds": opened.held_by(reviewer),
        "typed": opened.typed,
        "saved": opened.saved,
        "reading": read_own(opened.typed.code, reviews.codebook),
    }


def _to_next(reviews: Reviews, reviewer: str, after: int) -> RedirectResponse:
    case = reviews.audit.take_next(reviewer, after)
    return RedirectResponse("/audit" if case is None else f"/audit/{case}", 303)
