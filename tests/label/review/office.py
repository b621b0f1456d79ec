"""A run with open cases, made without Ray against a chat server, and browsers on its page."""

import asyncio
import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from httpx2 import Response
from starlette.testclient import TestClient

from raylab.core.config.base import AS_PUBLISHED
from raylab.core.config.compose import load_config
from raylab.core.config.yaml import read_yaml
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import identity_of
from raylab.label.archive.run import RunArchive
from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.codebooks.codebook import Codebook
from raylab.label.config.codebook import EXAMPLES, read_codebook
from raylab.label.config.jobs import AnnotateConfig, ReviewConfig
from raylab.label.input.cases import Case
from raylab.label.judgement import DECISION
from raylab.label.opt.code import parse
from raylab.label.protocol.calls import RunWriter
from raylab.label.protocol.decisions import unconfirmed_cases
from raylab.label.protocol.outcome import HumanDecision, read_decision
from raylab.label.protocol.run import archive_location
from raylab.label.protocol.settings import protocol_settings
from raylab.label.protocol.worker import Chunk, Worker
from raylab.label.review.access import Access, access_of
from raylab.label.review.app import create_app
from raylab.label.review.reviews import Reviews
from tests.label.archive.rows import NOON
from tests.label.protocol.local import local_archive
from tests.label.protocol.studies import carry_out, study

MODELS = {
    "annotators.0": "quux-a",
    "annotators.1": "quux-b",
    "evaluator": "quux-judge",
    "adjudicator": "quux-chair",
}
ONE = "[[gold=Evo;a=Evo;b=Sch;eval_a=90;eval_b=40]]"
"""Only A's code is acceptable."""
JOINED = "[[gold=Evo/Lrn;a=Evo/Lrn;b=Evo+Lrn;eval_a=90;eval_b=40]]"
NEITHER = "[[gold=Ctl;a=Lrn;b=Lrn/Ctl;eval_a=30;eval_b=55]]"
UNCONFIRMED = "[[gold=Sym;a=Sym+Sch;b=Sch;eval_a=90;eval_b=85;adj=Prb;eval_adj=20]]"
AGREED = "[[gold=Lrn;a=Lrn;b=Lrn;eval_a=92;eval_b=92]]"
GOLD = "Swm/Ctl"
TICKETS = """
name: tickets
task: What to do.
fields:
  topic:
    definition: what the customer wants
    labels: {tracking: Where is it?, damage: A parcel came broken.}
  areas:
    labels: {depot: Storage., courier: Delivery., web: The site.}
    several: true
    optional: true
  level: {labels: {low: It waits., high: It burns.}, optional: true}
  parcels: {definition: how many, number: [0, 50]}
  amount: {number: [0.5, 99], optional: true}
  quote: {definition: the words that say it, text: 90, optional: true}
"""
"""A codebook of six fields."""
HIGH = {"level": "high", "parcels": 2, "amount": None, "quote": ""}
RECORDS = (
    {"topic": "tracking", "areas": ["web"], **HIGH},
    {"topic": "damage", "areas": [], **HIGH, "amount": 40, "quote": "שבור"},
)
"""Two answers by it."""
LEASE = timedelta(minutes=10)
BASE = "http://127.0.0.1:8700"
FROM_HERE = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}


def annotation(storage: Path, url: str, *overrides: str) -> AnnotateConfig:
    """The configuration of run `systems`, with models served at a URL."""
    models = [f"llm.{role}.model={model}" for role, model in MODELS.items()]
    default = "llm.endpoints.default"
    endpoint = ["llm=openai", f"{default}.base_url={url}", f"{default}.api_key_env=null"]
    place = [f"storage={storage}", "name=systems", "protocol.seed=5"]
    return load_config(AnnotateConfig, [*endpoint, *models, *place, *overrides])


def make_study(
    storage: Path, codebook: str, text: str, pair: Iterable[Any], people: int = 1
) -> AnnotateConfig:
    """Annotates a text with the codebook of a file, of which people decide what two answers say."""
    (storage / "cases.jsonl").write_text(json.dumps({"id": "one", "description": text}))
    config = study(
        storage,
        "systems",
        read_codebook(EXAMPLES[codebook]) if codebook in EXAMPLES else read_yaml(codebook).value,
        {"path": str(storage / "cases.jsonl")},
        protocol={"adjudicator": "human"},
        review={"people": people},
    )
    first, second = pair
    carry_out(config, [(first, second)])
    return config


def make_office(storage: Path, url: str) -> None:
    """Annotates the cases of an `Office`, by their sequence: 6 is accepted, the others wait."""
    cases = {
        "pool": f"A pool of schedules is scored and recombined. {ONE}",
        "valve/hybrid": f"A valve is regulated by a trained model.\nIt feeds back. {NEITHER}",
        "<b>bold</b>": f"Facts are derived. {UNCONFIRMED}",
        "joined": f"A model is bred. {JOINED}",
        "code": f"def correlate(x, y):\n    return x < y\n# {NEITHER}",
        "agreed": f"A model is fitted. {AGREED}",
    }
    make_run(annotation(storage, url), cases)


def make_run(config: AnnotateConfig, cases: Mapping[str, str]) -> None:
    """Annotates descriptions by the ids of their cases; each has gold, which no page shows."""
    run = Run.open(config)
    named = [(AS_PUBLISHED, Case(name, text, GOLD, parse(GOLD))) for name, text in cases.items()]
    with Archive.open(archive_location(config.storage, config.archive)) as archive:
        archive.start_run(run.name, identity_of(config), {}, run.id)
        work_on(config, archive, named)


def work_on(config: AnnotateConfig, archive: Archive, cases: Chunk) -> None:
    """Has the models annotate cases, or judge decisions on them, one after another."""
    settings, run = protocol_settings(config, "systems", choose_codebook(config)), "systems"

    async def work(owner: str) -> None:
        writer = RunWriter(archive.place, run, owner, config.llm.budget)
        worker = Worker(config.llm, settings, run, local_archive(writer))
        for case in cases:
            tally = await worker.annotate([case])
            assert not tally.open_cases and tally.halt is None
        await worker.close()

    with archive.run(run).own() as owner:
        asyncio.run(work(owner.token))


@contextmanager
def open_office(config: AnnotateConfig) -> Generator["Office"]:
    """The office of a run that was made."""
    with Archive.open(Path(config.storage) / "archive.db", create=False) as archive:
        yield Office(archive, config)


@dataclass
class Office:
    """A run with open cases, a time, and the page for any number of reviewers."""

    archive: Archive
    config: AnnotateConfig
    time: datetime = field(default=NOON)

    @property
    def run(self) -> RunArchive:
        return self.archive.run("systems")

    @cached_property
    def codebook(self) -> Codebook:
        return choose_codebook(self.config)

    def decisions(self, kind: str = DECISION) -> list[HumanDecision]:
        rows = self.run.decisions(kind=kind)
        return [read_decision(row.body, self.codebook) for row in rows if row.action != "draw"]

    def held(self) -> dict[int, str]:
        """Who works on which case."""
        leases = self.run.reviews().leases(self.time)
        return {case: lease.reviewer for case, lease in leases.items()}

    def judge(self) -> None:
        """Has the evaluator judge every decision that waits, as a resumed run does."""
        work_on(self.config, self.archive, [*unconfirmed_cases(self.run, self.codebook)])

    def browser(self, name: str = "", access: Access | None = None) -> "Browser":
        """A browser with a session of its own, of a reviewer who has signed in if one is named."""
        seed, people = self.config.protocol.seed, self.config.review.people
        reviews = Reviews(self.run, self.codebook, seed, LEASE, people, now=lambda: self.time)
        browser = Browser(reviews, access or access_of(ReviewConfig(name="systems")))
        if name:
            assert browser.post("/sign-in", name=name).status_code == 303
        return browser


class Browser:
    """As much of a browser as forms need; `page` is the one that was got last."""

    def __init__(self, reviews: Reviews, access: Access) -> None:
        self.app = create_app(reviews, access)
        self.client = TestClient(self.app, base_url=BASE, follow_redirects=False)
        self.page = BeautifulSoup("", "html.parser")

    def get(self, path: str, **headers: str) -> Response:
        return self._keep(self.client.get(path, headers=headers))

    def post(self, path: str, headers: dict[str, str] = FROM_HERE, **fields: Any) -> Response:
        """Sends a form of the page, with what it carries unseen; `_` in names stands for `-`."""
        for form in self.page.select("#decision"):
            if path.startswith(f"/cases/{form['data-case']}/"):
                hidden = form.select("[type=hidden]")
                fields = {str(own["name"]): own["value"] for own in hidden} | fields
        data = {name.replace("_", "-"): value for name, value in fields.items()}
        return self._keep(self.client.post(path, data=data, headers=headers))

    def go(self, answer: Response) -> str:
        """Goes where a redirect points, and returns that."""
        assert answer.status_code == 303, answer.text
        self.get(answer.headers["location"])
        return answer.headers["location"]

    def text(self, selector: str = "main") -> str:
        """The words of the elements that a CSS selector names."""
        return " ".join(" ".join(part.text for part in self.page.select(selector)).split())

    def value(self, name: str) -> object:
        """The value of a field: of the option that is chosen, or the text."""
        for part in self.page.select(f"[name={name}]"):
            if part.name == "textarea":
                return part.text.strip()
            if part["type"] in ("text", "number") or part.has_attr("checked"):
                return part.get("value")
        return None

    def _keep(self, answer: Response) -> Response:
        if answer.headers.get("content-type", "").startswith("text/html"):
            self.page = BeautifulSoup(answer.text, "html.parser")
        return answer


# Label Studio


def task(case: str, *annotations: dict[str, Any]) -> dict[str, Any]:
    """A task as Label Studio exports it."""
    return {"id": 1, "data": {"case": case}, "annotations": list(annotations)}


def submission(by: Any = 3, *controls: dict[str, Any], **texts: str) -> dict[str, Any]:
    """An annotation as Label Studio exports it: with much that nobody here needs."""
    typed = (control(name, "textarea", text) for name, text in texts.items())
    return {
        "id": 1001,
        "completed_by": by,
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": "2021-03-09T22:16:08.728353Z",
        "lead_time": 4.288,
        "task": 1,
        "result": [*controls, *typed],
    }


def control(name: str, kind: str, *items: Any, **region: Any) -> dict[str, Any]:
    """The values of a control."""
    key, value = {"textarea": "text"}.get(kind, kind), items[0] if kind == "number" else items
    place = {"id": f"Dx_{name}", "from_name": name, "to_name": "description", "type": kind}
    return {**place, "value": {**region, key: value}, "origin": "manual"}
