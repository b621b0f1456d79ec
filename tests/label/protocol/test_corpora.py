"""Three strangers' corpora, from their files to reviewed labels, an audit, and a second model.

Answers and judgements are drawn from a truth, with errors of known kinds. The models are served on
loopback by a server that refuses, breaks and cuts off some calls.
"""

import asyncio
import csv
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from queue import Queue
from typing import Any

import pandas as pd
import pytest

from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.codebooks.codebook import Codebook
from raylab.label.conclusions.audit import draw_audit
from raylab.label.judgement import AUDIT, SETTLE
from raylab.label.pages.drift import report_drift
from raylab.label.protocol.dry_run import forecast
from raylab.label.review.label_studio import control_name, import_tasks, write_waiting
from raylab.label.review.reviews import DecisionForm, Reviews
from raylab.label.statistics.frame import has_labels
from tests.label.protocol.chats import GOOD
from tests.label.protocol.studies import conclude_run, send_out, study
from tests.llm.scripted_server import Answer, Call, Model, ScriptedServer, completion, failure

TOPICS = ("billing", "refund", "login", "outage", "data_loss", "privacy", "security", "wishes",
          "speed", "shipping", "abuse", "legal", "praise", "other")  # fmt: skip
PARTS = (
    "\u0634\u0643\u0631\u0627",
    "\U0001f621",
    "<b>bold</b>",
    'He said "no"',
    "a\nb",
    "x; y",
    "=1+1",
)


def labels(*names: str) -> dict[str, str]:
    return {name: f"It is about {name}." for name in names}


CODEBOOKS: Mapping[str, dict[str, Any]] = {
    "tickets": {
        "name": "tickets",
        "task": "Say what the ticket is about.",
        "fields": {
            "topics": {"labels": labels(*TOPICS), "several": True},
            "severity": {"labels": labels("5", "4", "3", "2", "1"), "distance": "graded"},
            "quote": {"text": 40, "optional": True},
        },
    },
    "papers": {
        "name": "papers",
        "task": "Say which methods the abstract names.",
        "labels": labels("survey", "trial", "cohort", "model"),
        "several": True,
        "distance": "masi",
    },
    "visits": {
        "name": "visits",
        "task": "Describe the visit.",
        "fields": {
            "who": {"labels": labels("patient", "relative")},
            "mood": {"labels": labels("calm", "tense", "angry"), "distance": "graded"},
            "signs": {
                "labels": labels("cough", "fever", "rash"),
                "several": True,
                "optional": True,
            },
            "days": {"number": [0, 30], "distance": "graded", "optional": True},
            "drug": {"text": 20, "compare": "exact", "optional": True},
            "remark": {"text": 60, "optional": True},
        },
    },
}


def draw(random: random.Random, book: Mapping[str, Any]) -> Any:
    """Returns a value that a codebook or a field admits."""
    if "fields" in book:
        return {name: draw(random, field) for name, field in book["fields"].items()}
    empty = book.get("optional") and random.random() < 0.3
    if "number" in book:
        return None if empty else random.randint(*book["number"])
    if "text" in book:
        return "" if empty else random.choice(["parcel", "the parcel", "money back"])
    names = [*book["labels"]]
    if not book.get("several"):
        return random.choice(names)
    return [] if empty else sorted(random.sample(names, random.randint(1, 2)), key=names.index)


def err(random: random.Random, book: Mapping[str, Any], truth: Any, rate: float) -> Any:
    """Returns the truth, with errors in a share of its values, and other words in any text."""
    if "fields" in book:
        return {
            name: err(random, field, truth[name], rate) for name, field in book["fields"].items()
        }
    if "text" in book and "compare" not in book:
        return draw(random, book)
    return draw(random, book) if random.random() < rate else truth


def write_tickets(path: Path, texts: list[str], truths: list[Any]) -> dict[str, Any]:
    """Writes a table with semicolons, and gold for two of three fields, which some rows lack."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        rows = csv.writer(file, delimiter=";")
        rows.writerow(["Nr", "Body", "Gold topics", "Gold severity"])
        for place, (text, truth) in enumerate(zip(texts, truths, strict=True)):
            topics = ", ".join(truth["topics"]) if place % 3 else ""
            rows.writerow([f"T-{place}", text, topics, truth["severity"]])
    gold = {"topics": "Gold topics", "severity": "Gold severity"}
    return {"path": str(path), "id": "Nr", "text": "Body", "gold": gold}


def write_papers(path: Path, texts: list[str], truths: list[Any]) -> dict[str, Any]:
    frame = pd.DataFrame({"abstract": texts, "gold": [", ".join(truth) for truth in truths]})
    frame.to_csv(path, sep="\t", index=False)
    return {"path": str(path), "text": "abstract"}


def write_visits(path: Path, texts: list[str], truths: list[Any]) -> dict[str, Any]:
    rows = [
        {"id": place, "description": text, "gold": truth}
        for place, (text, truth) in enumerate(zip(texts, truths, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path)}


def fill_controls(book: Mapping[str, Any], truth: Any) -> list[dict[str, Any]]:
    """Returns a judgement as Label Studio's controls for a codebook export it."""
    asked = {name: (field, truth[name]) for name, field in book.get("fields", {}).items()}
    result = list[dict[str, Any]]()
    for name, (field, value) in (asked or {"": (book, truth)}).items():
        if value in ("", None, []):
            continue
        if "labels" in field:
            kind, said = "choices", {"choices": value if isinstance(value, list) else [value]}
        elif "number" in field:
            kind, said = "number", {"number": value}
        else:
            kind, said = "textarea", {"text": [value]}
        result.append({"from_name": control_name(name), "type": kind, "value": said})
    return result


Write = Callable[[Path, list[str], list[Any]], dict[str, Any]]
FILES: Mapping[str, tuple[str, Write]] = {
    "tickets": ("tickets.csv", write_tickets),
    "papers": ("papers.tsv", write_papers),
    "visits": ("visits.jsonl", write_visits),
}


class Panel:
    """Models that say of each text what they are given to say, and fail some calls at first."""

    def __init__(self, answers: list[tuple[Any, Any]]) -> None:
        self._answers = answers
        self._faults = Model(0.4)
        self.whole = Counter[str]()
        """How often each call was answered so that its reply can be read."""

    def __call__(self, call: Call) -> Answer:
        fault = self._faults.fault_of(call)
        # A timeout also loses whole replies when the machine stalls, so that none is scripted.
        if fault in ("429", "500", "timeout"):
            return failure(429 if fault == "429" else 500, "busy", retry_after=0.05)
        match = re.search(r"Text (\d+) of", call.text)
        assert match is not None
        first, second = self._answers[int(match[1])]
        keys = call.schema["properties"]
        if "verdict" in keys:
            said = GOOD
        else:
            own = second if call.body["model"] == "beta" and "choice" not in keys else first
            chosen = {"choice": "synthesis"} if "choice" in keys else {}
            (key,) = keys.keys() - {"rationale", "choice"}
            said = json.dumps({"rationale": "so", **chosen, key: own})
        cut = {"cut": "before", "cut_body": "body"}.get(fault, "")
        self.whole[call.hash] += not cut
        fenced = f"```json\n{said}\n```" if call.draw("fence") < 0.2 else said
        return replace(completion(call, fenced, fault), cut=cut)


@contextmanager
def served(panel: Panel) -> Generator[str]:
    """Serves models in a thread; yields the address."""
    address = Queue[str]()
    ended = threading.Event()

    async def serve() -> None:
        async with ScriptedServer(panel, latency=0.005) as server:
            address.put(server.base_url)
            while not ended.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield address.get(timeout=60)
    finally:
        ended.set()
        thread.join()


def review(
    reviews: Reviews,
    codebook: Codebook,
    kind: str,
    say: Callable[[str, str], Any],
    names: tuple[str, ...] = ("Ada", "Bo", "Cy"),
) -> int:
    """Has two people judge each case of a queue, and a third settle; returns how often."""
    settled = 0
    for name in names:
        while (place := reviews.take_next(name, kind)) is not None:
            opened = reviews.open(place, name)
            settled += opened.standing.turn == SETTLE
            line = str(codebook.parse_own(json.dumps(say(opened.case.case, name))))
            reviews.submit(
                place, name, DecisionForm(choice="own", code=line, justification="so it is")
            )
            if name == "Cy" and opened.standing.turn != SETTLE:
                raise AssertionError("two people come first")
    return settled


@pytest.mark.parametrize("corpus", CODEBOOKS)
def test_a_corpus_goes_from_its_file_to_reviewed_labels(corpus: str, tmp_path: Path) -> None:
    drawn, content = random.Random(corpus), CODEBOOKS[corpus]
    texts = [f"Text {n} of {corpus}. {drawn.choice(PARTS)} and so on." for n in range(20)]
    truths = [draw(drawn, content) for _ in texts]
    answers = [(err(drawn, content, t, 0.1), err(drawn, content, t, 0.3)) for t in truths]
    # One annotator's replies cannot be read, so that people decide.
    for place in (4, 9, 14):
        answers[place] = ({"no": "answer"}, answers[place][1])
    suffix, write = FILES[corpus]
    cases = write(tmp_path / suffix, texts, truths)
    with served(panel := Panel(answers)) as url:
        config = study(
            tmp_path, "first", content, cases, url=url, review={"people": 2}, export="csv"
        )
        codebook = choose_codebook(config)
        assert [row.least.calls for row in forecast(config, codebook)][:2] == [20, 20]
        send_out(config, 20, most=5)
        with Archive.open(tmp_path / "archive.db", create=False) as archive:
            assert 5 <= archive.run("first").row().records < 20
        send_out(config, 20)
        # Of the four calls that may be in flight when the run is cut off, the replies are lost.
        assert sum(panel.whole.values()) - len(panel.whole) <= 4
        asked = panel.whole.copy()
        other = [{"model": "gamma"}, {"model": "delta"}]
        send_out(study(tmp_path, "second", content, cases, models=other, url=url), 20)
        send_out(study(tmp_path, "third", content, cases, fresh=True, url=url), 20)
        before = panel.whole.copy()
        send_out(study(tmp_path, "again", content, cases, url=url), 20)
        assert panel.whole == before > asked
    report = conclude_run(config)
    assert report["cases"]["total"] == 20

    frame = pd.read_csv(tmp_path / "first/cases.csv", dtype=str, keep_default_na=False)
    places = [texts.index(text.removeprefix("'")) for text in frame["description"]]
    golds = [codebook.parse_gold(line) if line else None for line in frame["gold_code"]]
    said = [codebook.parse_own(json.dumps(answers[place][1])) for place in places]
    right = [has_labels(own, gold) for own, gold in zip(said, golds, strict=True) if gold]
    gold = report["gold"]["B"]
    assert gold["labels"]["count"] == len(right)
    assert gold["labels"]["value"] == pytest.approx(sum(right) / len(right))
    for name in content.get("fields", {}):
        # A spreadsheet would compute a cell that begins with a sign.
        cells = [cell.removeprefix("'") for cell in frame[f"code_b.{name}"]]
        assert cells == [own.show(name) for own in said]
    truth_of = {case: truths[place] for case, place in zip(frame["case"], places, strict=True)}

    with Archive.open(tmp_path / "archive.db", create=False) as archive:
        run = archive.run("first")
        reviews = Reviews(run, codebook, 307, timedelta(minutes=10), people=2)
        waiting = len(reviews.reasons())
        assert waiting >= 3

        def say(case: str, name: str) -> Any:
            rate = 0.0 if name == "Cy" else 0.2
            return err(random.Random(f"{case} {name}"), content, truth_of[case], rate)

        # Ada works in Label Studio.
        file = tmp_path / "waiting.json"
        assert write_waiting(file, reviews)[0] == waiting
        tasks = json.loads(file.read_text())
        for task in tasks:
            result = fill_controls(content, say(task["data"]["case"], "Ada"))
            task["annotations"] = [{"result": result, "completed_by": {"email": "ada@x.example"}}]
        file.write_text(json.dumps(tasks))
        done = import_tasks(file, reviews)
        assert (done.read, done.new, done.problems) == (waiting, waiting, [])
        settled = review(reviews, codebook, "", say, names=("Bo", "Cy"))
        assert 0 <= settled <= waiting and not reviews.reasons()
        drawn_cases = draw_audit(run, 0.5, 307)
        review(reviews, codebook, AUDIT, say)
    report = conclude_run(config)
    assert report["people"]["audit"]["twice"] == report["audit"]["drawn"] == drawn_cases
    assert report["audit"]["audited"] == drawn_cases
    assert report["decisions"]["cases"] == waiting
    frame = pd.read_csv(tmp_path / "first/cases.csv", dtype=str, keep_default_na=False)
    people = [{made["reviewer"] for made in json.loads(cell)} for cell in frame["audit"]]
    assert sum({"Ada", "Bo"} <= names for names in people) == drawn_cases
    assert sum(not names for names in people) == 20 - drawn_cases

    report_drift(str(tmp_path), None)
    drift = json.loads((tmp_path / "drift.json").read_text())
    assert [*drift["unpaired"]] == ["second"] and not drift["unread"]
    assert {(each["before"], each["after"]) for each in drift["comparisons"]} >= {
        ("first", "third")
    }
    assert all(each["lost"] == each["gained"] == 0 for each in drift["comparisons"])
