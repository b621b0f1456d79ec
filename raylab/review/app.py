"""The review page: forms rendered on the server, which a small script makes live.

Every route that needs the archive is a plain function, which FastAPI runs in a thread: the archive
may make it wait. Nothing waits for the evaluator.
"""

import logging
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Form, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from raylab.annotation.human.open_cases import Opened, UndecidedError
from raylab.annotation.human.reviews import LISTED, Reviews
from raylab.annotation.outcome import current_label, read_decision
from raylab.errors import ArchiveError, DataError, LeaseError
from raylab.review.access import Access, Guard
from raylab.review.audit_pages import AUDIT_PAGES
from raylab.review.forms import (
    OWN_FORM,
    Filled,
    FilledKind,
    Kind,
    Number,
    OfRun,
    Place,
    Reviewer,
    SignedOut,
    reviews_of,
    visit_of,
)
from raylab.review.pages import STATIC, link, read_static, render
from raylab.review.sign_in_limit import SignInLimit
from raylab.review.view import case_view, reading
from raylab.review.visits import SESSION_SECONDS, Visits

PAGE_LENGTH = 50
"""Cases of the queue on one page."""
LONGEST_NAME = 60
FEW = 3
"""Decisions under way that are shown beside a case."""
OWN_PATH = re.compile(r"/(?:decided|next|cases/\d{1,18}|audit(?:/\d{1,18})?)?(?:\?[\w=&-]*)?")
"""The paths to which a reviewer may be sent on after signing in."""
LOGGER = logging.getLogger(__name__)


def create_app(reviews: Reviews, access: Access) -> FastAPI:
    """Returns the page as an ASGI application.

    Args:
        reviews: The run's open cases.
        access: Its hosts, token and cookie.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.reviews, app.state.access = reviews, access
    app.state.limit = SignInLimit()
    app.include_router(PAGES)
    app.include_router(AUDIT_PAGES)
    app.add_exception_handler(SignedOut, _sign_in_first)
    for kind in (LeaseError, ArchiveError, DataError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _told)
    app.add_middleware(Visits, access=access)
    app.add_middleware(Guard, access=access)
    if access.proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(access.proxies))
    return app


PAGES = APIRouter(default_response_class=HTMLResponse)


# Signing in


@PAGES.post("/sign-in", dependencies=OWN_FORM)
def sign_in(
    request: Request,
    name: Annotated[str, Form()] = "",
    token: Annotated[str, Form()] = "",
    then: Annotated[str, Form()] = "/",
) -> Response:
    """Begins a session of a reviewer, who gives a name and, where one is demanded, the token."""
    name = " ".join(name.split())
    then = then if OWN_PATH.fullmatch(then) else "/"
    problems: dict[str, str] = {}
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        problems["name"] = f"Give the name to archive with decisions, 1 to {LONGEST_NAME} letters."
    access: Access = request.app.state.access
    if access.token is not None:
        limit: SignInLimit = request.app.state.limit
        address = request.client.host if request.client else ""
        if wait := math.ceil(limit.count(address)):
            problems["token"] = f"Too many wrong tokens came from your address: wait {wait} s."
            form = _sign_in_form(request, then, problems, name, 429)
            form.headers["Retry-After"] = str(wait)
            return form
        if access.admits(token):
            limit.forget(address)
        else:
            LOGGER.warning("a wrong token was given for the review page, from %s", address)
            problems["token"] = "This is not the token of this page."
    if problems:
        return _sign_in_form(request, then, problems, name)
    visit, now = visit_of(request), datetime.now(UTC)
    sessions = reviews_of(request).sessions()
    sessions.end(visit.session_key)
    visit.renew()
    sessions.begin(visit.session_key, name, now, now + timedelta(seconds=SESSION_SECONDS))
    return RedirectResponse(then, 303)


@PAGES.post("/sign-out", dependencies=OWN_FORM)
def sign_out(request: Request) -> Response:
    """Ends the session, on the server too."""
    visit = visit_of(request)
    reviews_of(request).sessions().end(visit.session_key)
    visit.end()
    return RedirectResponse("/", 303)


# Pages


@PAGES.get("/")
def queue(
    request: Request, reviews: OfRun, reviewer: Reviewer, kind: Kind = "", page: int = 1
) -> Response:
    """Shows the open cases, of all kinds or of one."""
    waiting = reviews.queue()
    kinds: dict[str, int] = {}
    for case in waiting:
        kinds[case.kind] = kinds.get(case.kind, 0) + 1
    chosen = [case for case in waiting if kind in ("", case.kind)]
    pages = max(1, -(-len(chosen) // PAGE_LENGTH))
    page = min(max(page, 1), pages)
    return render(
        request,
        "queue.html",
        total=len(waiting),
        kinds=sorted(kinds.items()),
        kind=kind,
        cases=chosen[(page - 1) * PAGE_LENGTH : page * PAGE_LENGTH],
        page=page,
        pages=pages,
        leases=reviews.leases(),
        drafts=reviews.drafts(reviewer),
        **_sent(reviews, reviewer),
    )


@PAGES.get("/next")
def next_case(
    request: Request, reviews: OfRun, reviewer: Reviewer, kind: Kind = "", after: Place = 0
) -> Response:
    """Goes on to the next open case that nobody works on."""
    return _to_next(reviews, reviewer, kind, after)


@PAGES.get("/decided")
def decided(request: Request, reviews: OfRun, reviewer: Reviewer) -> Response:
    """Shows the reviewer's latest decisions."""
    decisions = reviews.decided_by(reviewer)
    return render(request, "decided.html", decisions=decisions, **_sent(reviews, reviewer))


@PAGES.get("/sent")
def sent(
    request: Request, reviews: OfRun, reviewer: Reviewer, done: Place = 0, few: bool = False
) -> Response:
    """Shows the reviewer's decisions that are under way, as a part of the other pages."""
    return render(request, "sent.html", **_sent(reviews, reviewer, done, few))


@PAGES.get("/cases/{case}")
def case(
    request: Request,
    reviews: OfRun,
    reviewer: Reviewer,
    case: Number,
    kind: Kind = "",
    done: Place = 0,
) -> Response:
    """Shows a case, and keeps it for the reviewer while nobody else works on it."""
    opened = reviews.open(case, reviewer)
    return _case_page(request, opened, kind=kind, done=done)


@PAGES.post("/cases/{case}/draft", dependencies=OWN_FORM)
def save_draft(
    request: Request, reviews: OfRun, reviewer: Reviewer, case: Number, typed: Filled
) -> Response:
    """Keeps what is typed and the case, and says how an own code reads."""
    opened = replace(reviews.save(case, reviewer, typed), typed=typed)
    return render(request, "state.html", **_state(reviews, opened, reviewer))


@PAGES.post("/cases/{case}/skip", dependencies=OWN_FORM)
def skip(
    reviews: OfRun,
    reviewer: Reviewer,
    case: Number,
    typed: Filled,
    kind: FilledKind = "",
) -> Response:
    """Leaves a case to others, with what was typed kept, and goes on to the next."""
    reviews.save(case, reviewer, typed)
    reviews.give_back(case, reviewer)
    return _to_next(reviews, reviewer, kind, case)


@PAGES.post("/cases/{case}/decide", dependencies=OWN_FORM)
def decide(
    request: Request,
    reviews: OfRun,
    reviewer: Reviewer,
    case: Number,
    typed: Filled,
    kind: FilledKind = "",
) -> Response:
    """Accepts a decision, which waits for the evaluator, and goes on to the next case."""
    try:
        reviews.submit(case, reviewer, typed)
    except UndecidedError as error:
        opened = reviews.open(case, reviewer)
        return _case_page(request, opened, 422, kind=kind, problems=error.problems)
    except LeaseError as error:
        return _case_page(request, reviews.open(case, reviewer), 409, kind=kind, lost=str(error))
    return _to_next(reviews, reviewer, kind, case, done=case)


@PAGES.post("/cases/{case}/cancel", dependencies=OWN_FORM)
def cancel(reviews: OfRun, reviewer: Reviewer, case: Number) -> Response:
    """Takes the reviewer's own decision back before it is judged, and opens the case again."""
    reviews.cancel(case, reviewer)
    return RedirectResponse(f"/cases/{case}", 303)


@PAGES.post("/cases/{case}/undo", dependencies=OWN_FORM)
def undo(reviews: OfRun, reviewer: Reviewer, case: Number) -> Response:
    """Takes the reviewer's own decision back and opens the case again."""
    reviews.undo(case, reviewer)
    return RedirectResponse(f"/cases/{case}", 303)


@PAGES.get("/static/{name}")
async def static(name: str) -> Response:
    """Returns a style sheet or the script; there is no other file."""
    if name not in STATIC:
        raise HTTPException(404, "There is no such file.")
    return Response(read_static(name), media_type=STATIC[name][0])


# Content of pages


def _case_page(
    request: Request,
    opened: Opened,
    status: int = 200,
    kind: str = "",
    problems: Mapping[str, str] | None = None,
    lost: str = "",
    done: int = 0,
) -> Response:
    reviews: Reviews = request.app.state.reviews
    reviewer: str = request.state.reviewer
    if reviews.audit.has(opened.current.case.case):
        # Whoever codes it must not see the codes of the protocol.
        return RedirectResponse(f"/audit/{opened.current.case.sequence}", 303)
    decisions = [
        (row.created, read_decision(row.body, reviews.codebook)) for row in opened.current.decisions
    ]
    return render(
        request,
        "case.html",
        status,
        case=opened.current.case,
        view=case_view(opened, reviews.seed, reviews.codebook),
        code=current_label(opened.current, reviews.codebook),
        decisions=decisions,
        stands=opened.decided_by(reviewer),
        seconds=reviews.lease_seconds,
        kind=kind,
        problems=problems or {},
        lost=lost,
        page=secrets.token_urlsafe(8),
        **_sent(reviews, reviewer, done, few=True),
        **_state(reviews, opened, reviewer),
    )


def _state(reviews: Reviews, opened: Opened, reviewer: str) -> dict[str, Any]:
    """Returns the part of a case's page that changes while a reviewer types."""
    lease = opened.lease
    return {
        "waits": opened.waits,
        "pending": opened.pending,
        "lease": lease,
        "holds": lease is not None and lease.reviewer == reviewer,
        "typed": opened.typed,
        "saved": opened.saved,
        "reading": reading(opened.typed, reviews.codebook),
    }


def _sent(reviews: Reviews, reviewer: str, done: int = 0, few: bool = False) -> dict[str, Any]:
    """Returns the part of a page that changes while the evaluator is asked.

    Args:
        reviews: The run's open cases.
        reviewer: Whose decisions to show.
        done: Sequence of the case that was decided last; 0 for none.
        few: Show only a few of those that wait, and of those that came back.
    """
    waiting, refused = reviews.sent_by(reviewer), reviews.refused(reviewer)
    most = FEW if few else LISTED
    return {
        "waiting": waiting[:most],
        "refused": refused[-most:],
        "more": max(len(waiting) - most, 0) + max(len(refused) - most, 0),
        "settled": _settled(reviews, reviewer, done) if done else None,
        "poll": link("/sent", done=done, few=int(few)),
    }


def _settled(reviews: Reviews, reviewer: str, case: int) -> dict[str, Any] | None:
    """Returns the decision of the reviewer by which a case is settled, if any."""
    opened = reviews.look(case, reviewer)
    if not opened.decided_by(reviewer):
        return None
    return {
        "case": opened.current.case,
        "decision": read_decision(opened.current.decisions[-1].body, reviews.codebook),
    }


def _to_next(
    reviews: Reviews, reviewer: str, kind: str, after: int, done: int = 0
) -> RedirectResponse:
    case = reviews.take_next(reviewer, kind, after)
    path = "/decided" if case is None and done else "/" if case is None else f"/cases/{case}"
    return RedirectResponse(link(path, kind=kind, done=done if case else 0), 303)


def _sign_in_form(
    request: Request,
    then: str,
    problems: Mapping[str, str] | None = None,
    name: str = "",
    status: int = 401,
) -> Response:
    return render(
        request,
        "sign_in.html",
        status,
        then=then,
        name=name,
        problems=problems or {},
        with_token=request.app.state.access.token is not None,
    )


def _sign_in_first(request: Request, error: Exception) -> Response:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return _sign_in_form(request, target if request.method == "GET" else "/")


def _told(request: Request, error: Exception) -> Response:
    """Returns a page with the error's message."""
    match error:
        case HTTPException():
            status, message = error.status_code, str(error.detail)
        case LeaseError():
            status, message = 409, f"{error}."
        case DataError():
            status, message = 404, f"{error}."
        case ArchiveError():
            LOGGER.error("%s", error)
            status, message = 503, f"{error}. Nothing that was saved is lost."
        case _:
            status, message = 400, "The address cannot be read."
    return render(request, "message.html", status, message=message)
