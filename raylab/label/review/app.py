"""The review page: forms rendered on the server, made live by a small script.

Routes are plain functions, which FastAPI runs in threads, because the archive may make them wait.
The page sends nothing to any model.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, cast

from fastapi import Depends, FastAPI, Form, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from raylab.core.errors import ArchiveError, DataError, LabelError, LeaseError
from raylab.core.page.table import hues
from raylab.core.printable import printable
from raylab.label.codebooks.codebook import Label
from raylab.label.judgement import AUDIT, DECIDE, REFUSED, UNCONFIRMED, check_name
from raylab.label.pages.annotation import KINDS
from raylab.label.protocol.protocol import draw_order
from raylab.label.review.access import HEADERS, Access
from raylab.label.review.reviews import (
    ANSWER,
    EMPTY,
    TAKEN,
    DecisionForm,
    OpenCase,
    Reviews,
    UndecidedError,
    write,
)

PICKS = "1234567890hklmqstvwxyz"
"""The keys of the labels of a field; none means anything else on the page. Where a field takes one
label, 0 leaves it empty."""
PAGE_LENGTH = 50
"""Cases of a queue that are listed."""
STATIC = {
    "style.css": resources.files("raylab.core.page") / "templates",
    "review.css": resources.files("raylab.label.review") / "static",
    "review.js": resources.files("raylab.label.review") / "static",
}
"""The folders of the files that pages load."""
FAILED = "The page failed at this; its log says why. Nothing that was sent is lost: try again."
LOGGER = logging.getLogger(__name__)


async def _reviewer(request: Request) -> str:
    if "reviewer" not in request.session:
        raise HTTPException(401)
    return request.session["reviewer"]


async def _read_form(request: Request) -> DecisionForm:
    typed, answer = dict[str, object](), dict[str, list[object]]()
    for control, value in (await request.form()).multi_items():
        if control.startswith(ANSWER):
            answer.setdefault(control.removeprefix(ANSWER), []).append(value)
        else:
            typed[control] = str(value).split() if control == "shown" else value
    try:
        return DecisionForm.model_validate({"answer": answer, **typed})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


Number = Annotated[int, Path(ge=1, lt=2**63)]
"""Sequence of a case in its run."""
Place = Annotated[int, Query(ge=0, lt=2**63)]
"""The same in a query; 0 is none."""
Kind = Annotated[str, Query(pattern=r"^[\w-]{0,60}$")]
Reviewer = Annotated[str, Depends(_reviewer)]
Filled = Annotated[DecisionForm, Depends(_read_form)]
Text = Annotated[str, Form()]


def create_app(reviews: Reviews, access: Access) -> FastAPI:
    """Returns the page as an ASGI application."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = _Page(reviews, access)
    for method, path, answer in (
        ("POST", "/sign-in", page.sign_in),
        ("POST", "/sign-out", page.sign_out),
        ("GET", "/", page.queue),
        ("GET", "/next", page.next_case),
        ("GET", "/decided", page.decisions),
        ("GET", "/cases/{case}", page.case),
        ("POST", "/cases/{case}/keep", page.keep),
        ("POST", "/cases/{case}/skip", page.skip),
        ("POST", "/cases/{case}/decide", page.decide),
        ("POST", "/cases/{case}/undo", page.undo),
        ("GET", "/static/{name}", page.static),
    ):
        app.add_api_route(path, answer, methods=[method])
    for kind in (LeaseError, ArchiveError, DataError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, page.explain)
    # The server logs the error.
    app.add_exception_handler(Exception, lambda *_: PlainTextResponse(FAILED, 500, HEADERS))
    access.guard(app)
    return app


class _Page:
    """The answers to requests, one method per path."""

    def __init__(self, reviews: Reviews, access: Access) -> None:
        self._reviews, self._access = reviews, access
        folders = [PackageLoader("raylab.label.review"), PackageLoader("raylab.core.page")]
        self._environment = Environment(
            loader=ChoiceLoader(folders),
            autoescape=True,
            undefined=StrictUndefined,
            # Markup is made of texts that are printable already.
            finalize=lambda shown: printable(shown) if type(shown) is str else shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        codebook = reviews.codebook
        cast(dict[str, Any], self._environment.globals).update(
            path=_link,
            categories=codebook.categories,
            definitions=codebook.definitions,
            codes=codebook.examples,
            task=codebook.task,
            questions=codebook.questions,
            noun=codebook.label_name,
            ANSWER=ANSWER,
            hues=hues(codebook.categories),
            kinds={**KINDS, REFUSED: "The evaluator refused"},
            EMPTY=EMPTY,
            PICKS=PICKS,
            controls=_controls,
        )

    # Signing in

    def sign_in(self, request: Request, name: Text = "", token: Text = "") -> Response:
        """Begins a session of a reviewer, who gives a name and, where it is demanded, the token."""
        problems: dict[str, str] = {}
        try:
            name = check_name(name)
        except DataError as error:
            problems["name"] = f"{error}."
        if not self._access.admits(token):
            address = request.client.host if request.client else ""
            LOGGER.warning("a wrong token was given for the review page, from %s", address)
            problems["token"] = "This is not the token of this page."
        if problems:
            return self._sign_in_form(request, problems, name)
        request.session["reviewer"] = name
        return RedirectResponse("/", 303)

    def sign_out(self, request: Request) -> Response:
        """Ends the session of this browser."""
        request.session.clear()
        return RedirectResponse("/", 303)

    # Queues

    def queue(self, request: Request, reviewer: Reviewer, kind: Kind = "") -> Response:
        """Shows the open cases, of all kinds or of one, or with `kind=audit` the drawn ones."""
        reasons = self._reviews.reasons(kind, reviewer)
        chosen = [place for place, reason in reasons.items() if kind in ("", AUDIT, reason)]
        decisions = self._reviews.made_by(reviewer) if kind != AUDIT else []
        latest = [(place, decision) for place, decision, is_latest in decisions if is_latest]
        return self._render(
            request,
            "queue.html",
            total=len(reasons),
            drawn=self._reviews.count_drawn() if kind == AUDIT else 0,
            counts=sorted(Counter(reasons.values()).items()),
            kind=kind,
            cases=self._reviews.entries({p: reasons[p] for p in chosen[:PAGE_LENGTH]}),
            more=len(chosen) > PAGE_LENGTH,
            leases=self._reviews.leases(),
            unconfirmed=sum(decision.status == UNCONFIRMED for _, decision in latest),
            refused=[(p, last) for p, last in latest if last.is_refused and last.action == DECIDE],
            people=self._reviews.people,
        )

    def next_case(
        self, reviewer: Reviewer, kind: Kind = "", after: Place = 0, done: Place = 0
    ) -> Response:
        """Goes on to the next case that waits and nobody works on; `done` was just decided."""
        case = self._reviews.take_next(reviewer, kind, after)
        path = "/decided" if case is None and done else "/" if case is None else f"/cases/{case}"
        return RedirectResponse(_link(path, kind=kind, done=done), 303)

    def decisions(
        self, request: Request, reviewer: Reviewer, kind: Kind = "", done: Place = 0
    ) -> Response:
        """Shows the reviewer's latest decisions, and what has become of them."""
        decisions, codes = self._reviews.made_by(reviewer), self._reviews.made_by(reviewer, AUDIT)
        shown: dict[str, Any] = {"decisions": decisions, "codes": codes}
        return self._render(request, "decided.html", **shown, done=done, kind=kind)

    # A case

    def case(
        self, request: Request, reviewer: Reviewer, case: Number, kind: Kind = "", done: Place = 0
    ) -> Response:
        """Shows a case, and keeps it for the reviewer while nobody else works on it."""
        opened = self._reviews.open(case, reviewer)
        return self._case_page(request, opened, opened.draft(reviewer), done=done)

    def keep(self, request: Request, reviewer: Reviewer, case: Number, typed: Filled) -> Response:
        """Keeps a case for the reviewer, and says how the line reads that is being typed."""
        state = self._state(self._reviews.open(case, reviewer), typed)
        return self._render(request, "state.html", **state)

    def skip(self, reviewer: Reviewer, case: Number, kind: Kind = "") -> Response:
        """Leaves a case to others and goes on to the next."""
        self._reviews.archived.give_back(case, reviewer)
        return self.next_case(reviewer, kind, case)

    def decide(
        self, request: Request, reviewer: Reviewer, case: Number, typed: Filled, kind: Kind = ""
    ) -> Response:
        """Archives a decision, or the code of a drawn case, and goes on to the next case."""
        try:
            self._reviews.submit(case, reviewer, typed)
        except UndecidedError as error:
            opened = self._reviews.look(case)
            return self._case_page(request, opened, typed, 422, problems=error.problems)
        except LeaseError as error:
            opened = self._reviews.look(case)
            # The judgements that `first` and `second` stand for have changed.
            if typed.choice in TAKEN and typed.shown != opened.standing.shown:
                typed = typed.model_copy(update={"choice": None})
            return self._case_page(request, opened, typed, 409, lost=str(error))
        return self.next_case(reviewer, kind, case, done=case)

    def undo(self, reviewer: Reviewer, case: Number) -> Response:
        """Takes the reviewer's own decision back and opens the case again."""
        self._reviews.undo(case, reviewer)
        return RedirectResponse(f"/cases/{case}", 303)

    def static(self, name: str) -> Response:
        """Returns a style sheet or the script; there is no other file."""
        if name not in STATIC:
            raise HTTPException(404, "There is no such file.")
        return FileResponse(str(STATIC[name] / name))

    def explain(self, request: Request, error: Exception) -> Response:
        """Returns a page with the error's message, or the form of signing in."""
        match error:
            case HTTPException(status_code=401):
                return self._sign_in_form(request, {})
            case HTTPException():
                status, message = error.status_code, str(error.detail)
            case LeaseError():
                status, message = 409, f"{error}."
            case DataError():
                status, message = 404, f"{error}."
            case ArchiveError():
                LOGGER.error("%s", error)
                status, message = 503, f"{error}. Nothing that was sent is lost."
            case _:
                status, message = 400, "The address cannot be read."
        return self._render(request, "message.html", status, message=message)

    def _case_page(
        self, request: Request, opened: OpenCase, form: DecisionForm, status: int = 200, **more: Any
    ) -> Response:
        reviewer, stands = request.session["reviewer"], opened.standing
        blind = stands.hides(reviewer)
        answers = () if blind else opened.outcome.answers
        shown = {
            "sides": draw_order(self._reviews.seed, opened.case.case, answers),
            "seconds": self._reviews.lease.total_seconds(),
            "blind": blind,
            "waits": stands.waits_for(reviewer),
            "kind": AUDIT if stands.queue == AUDIT else request.query_params.get("kind", ""),
            "problems": {},
            "lost": "",
            "done": 0,
        }
        state = self._state(opened, form)
        return self._render(request, "case.html", status, **{**shown, **state, **more})

    def _state(self, opened: OpenCase, form: DecisionForm) -> dict[str, Any]:
        """Returns the part of a case's page that changes while a reviewer types."""
        label, misread, codebook = None, "", self._reviews.codebook
        line = "" if codebook.questions else form.code.strip()
        if line and (form.choice == "own" or opened.standing.hides()):
            try:
                label = codebook.parse_own(line)
            except LabelError as error:
                misread = str(error)
        return {"opened": opened, "typed": form, "label": label, "misread": misread}

    def _sign_in_form(
        self, request: Request, problems: Mapping[str, str], name: str = ""
    ) -> Response:
        shown = {"name": name, "problems": problems, "with_token": self._access.token is not None}
        return self._render(request, "sign_in.html", 401, **shown)

    def _render(
        self, request: Request, template: str, status: int = 200, **content: Any
    ) -> HTMLResponse:
        """Returns a page made of a template, whose variables `content` has, for a session."""
        page = self._environment.get_template(template).render(
            run=self._reviews.run,
            run_id=self._reviews.run_id,
            reviewer=request.session.get("reviewer", ""),
            here=_link(request.url.path, kind=request.query_params.get("kind", "")),
            **content,
        )
        return HTMLResponse(page, status)


def _link(path: str, **query: object) -> str:
    """Returns a path with the parameters of the query that are not empty."""
    filled = [f"{key}={value}" for key, value in query.items() if value]
    return f"{path}?{'&'.join(filled)}" if filled else path


def _controls(label: Label) -> dict[str, list[str]]:
    """Returns what the controls of an own code hold if it is this label."""
    fields = write(label)
    answer = {f"{ANSWER}{name}": values for name, values in fields["answer"].items()}
    return {"code": [fields["code"]], **answer}
