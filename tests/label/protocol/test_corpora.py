"""Three strangers' corpora, from their files to reviewed labels, an audit, and a second run.

Answers and judgements are drawn from a truth, with errors of known kinds.
"""

import csv
import json
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook, recorded_codebook
from raylab.label.conclusions.audit import draw_audit
from raylab.label.judgement import AUDIT, SETTLE
from raylab.label.pages.drift import report_drift
from raylab.label.protocol.dry_run import forecast
from raylab.label.review.reviews import DecisionForm, Reviews
from raylab.label.statistics.frame import has_labels
from tests.label.protocol.studies import carry_out, conclude_run, study

CASES = 20
PARTS = ("\u0634\u0643\u0631\u0627", "\U0001f621", "<b>bold</b>", 'He said "no"', "a\nb", "=1+1")


def labels(*names: str) -> dict[str, str]:
    return {name: f"It is about {name}." for name in names}


# Names that YAML, pydantic and pandas read in ways of their own are among them.
CODEBOOKS: Mapping[str, dict[str, Any]] = {
    "tickets": {
        "fields": {
            "topics": {"labels": labels("billing", "R&D/other?", "login", "2.50"), "several": True},
            "severity": {"labels": labels("5", "4", "3", "2", "1"), "distance": "graded"},
            "quote": {"text": 40, "optional": True},
        }
    },
    "papers": {
        "labels": labels("survey", "trial", "cohort", "model"),
        "several": True,
        "distance": "masi",
    },
    "visits": {
        "fields": {
            "model_config": {"labels": labels("patient", "relative")},
            "mood": {"labels": labels("calm", "tense", "angry"), "distance": "graded"},
            "signs": {
                "labels": labels("cough", "fever", "rash"),
                "several": True,
                "optional": True,
            },
            "days": {"number": [0, 30], "distance": "graded", "optional": True},
            "byte": {"text": 20, "compare": "exact", "optional": True},
            "zeal": {"text": 60, "compare": "similar", "optional": True},
        }
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
        return "" if empty else random.choice(["parcel", "A parcel", 'say "no": [x]'])
    names = [*book["labels"]]
    if not book.get("several"):
        return random.choice(names)
    return [] if empty else sorted(random.sample(names, random.randint(1, 2)), key=names.index)


def err(random: random.Random, book: Mapping[str, Any], truth: Any, rate: float) -> Any:
    """Returns the truth, with errors in a share of its values."""
    if "fields" in book:
        fields = book["fields"].items()
        return {name: err(random, field, truth[name], rate) for name, field in fields}
    return draw(random, book) if random.random() < rate else truth


def write_tickets(folder: Path, texts: list[str], truths: list[Any]) -> dict[str, Any]:
    """Writes a table with semicolons, and gold for two of three fields, which some rows lack."""
    path = folder / "tickets.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        rows = csv.writer(file, delimiter=";")
        rows.writerow(["Nr", "Body", "Gold topics", "Gold severity"])
        for place, (text, truth) in enumerate(zip(texts, truths, strict=True)):
            topics = ", ".join(truth["topics"]) if place % 3 else ""
            rows.writerow([f"T-{place}", text, topics, truth["severity"]])
    gold = {"topics": "Gold topics", "severity": "Gold severity"}
    return {"path": str(path), "id": "Nr", "text": "Body", "gold": gold}


def write_rows(folder: Path, texts: list[str], truths: list[Any]) -> dict[str, Any]:
    rows = zip(range(CASES), texts, truths, strict=True)
    lines = (json.dumps({"id": n, "description": text, "gold": gold}) for n, text, gold in rows)
    (folder / "cases.jsonl").write_text("\n".join(lines))
    return {"path": str(folder / "cases.jsonl")}


def review(reviews: Reviews, kind: str, say: Callable[[str, str], Any]) -> None:
    """Has two people judge each case of a queue, and a third settle."""
    for name in ("Ada", "Bo", "Cy"):
        while (place := reviews.take_next(name, kind)) is not None:
            opened = reviews.open(place, name)
            assert (opened.standing.turn == SETTLE) == (name == "Cy")
            line = str(reviews.codebook.parse_own(json.dumps(say(opened.case.case, name))))
            form = DecisionForm(choice="own", code=line, justification="so it is")
            reviews.submit(place, name, form)


@pytest.mark.parametrize("corpus", CODEBOOKS)
def test_a_corpus_goes_from_its_file_to_reviewed_labels(corpus: str, tmp_path: Path) -> None:
    drawn = random.Random(corpus)
    content = {"name": corpus, "task": "Say what it is.", **CODEBOOKS[corpus]}
    texts = [f"Text {n} of {corpus}. {drawn.choice(PARTS)} and so on." for n in range(CASES)]
    truths = [draw(drawn, content) for _ in texts]
    answers = [(err(drawn, content, t, 0.1), err(drawn, content, t, 0.3)) for t in truths]
    # One annotator's replies cannot be read, so that people decide.
    for place in (4, 9, 14):
        answers[place] = ({"no": "answer"}, answers[place][1])
    write = write_tickets if corpus == "tickets" else write_rows
    cases = write(tmp_path, texts, truths)
    config = study(tmp_path, "first", content, cases, review={"people": 2}, export="csv")
    codebook = choose_codebook(config)
    assert [row.least.calls for row in forecast(config, codebook)][:2] == [CASES, CASES]
    report = carry_out(config, answers)
    assert report["cases"]["total"] == CASES

    frame = pd.read_csv(tmp_path / "first/cases.csv", dtype=str, keep_default_na=False)
    places = [texts.index(text.removeprefix("'")) for text in frame["description"]]
    golds = [codebook.parse_gold(line) if line else None for line in frame["gold_code"]]
    said = [codebook.parse_own(json.dumps(answers[place][1])) for place in places]
    right = [has_labels(own, gold) for own, gold in zip(said, golds, strict=True) if gold]
    gold = report["gold"]["B"]
    assert gold["labels"]["count"] == len(right)
    assert gold["labels"]["value"] == pytest.approx(sum(right) / len(right))
    for name in codebook.fields:
        # A spreadsheet would compute a cell that begins with a sign.
        cells = [cell.removeprefix("'") for cell in frame[f"code_b.{name}"]]
        assert cells == [own.show(name) for own in said]
    truth_of = {case: truths[place] for case, place in zip(frame["case"], places, strict=True)}

    def say(case: str, name: str) -> Any:
        rate = 0.0 if name == "Cy" else 0.2
        return err(random.Random(f"{case} {name}"), content, truth_of[case], rate)

    with Archive.open(tmp_path / "archive.db", create=False) as archive:
        run = archive.run("first")
        recorded = recorded_codebook(run.row().config)
        assert recorded.version == codebook.version
        assert recorded.distance.version == codebook.distance.version
        reviews = Reviews(run, codebook, 307, timedelta(minutes=10), people=2)
        waiting = len(reviews.reasons())
        assert waiting >= 3
        review(reviews, "", say)
        assert not reviews.reasons()
        audited = draw_audit(run, 0.5, 307)
        review(reviews, AUDIT, say)
    report = conclude_run(config)
    assert report["people"]["audit"]["twice"] == report["audit"]["drawn"] == audited
    assert report["audit"]["audited"] == audited and report["decisions"]["cases"] == waiting
    frame = pd.read_csv(tmp_path / "first/cases.csv", dtype=str, keep_default_na=False)
    people = [{made["reviewer"] for made in json.loads(cell)} for cell in frame["audit"]]
    assert sum({"Ada", "Bo"} <= names for names in people) == audited
    assert sum(not names for names in people) == CASES - audited

    again = carry_out(study(tmp_path, "again", content, cases, export="parquet"), answers)
    assert again["agreement"] == report["agreement"]
    frame = pd.read_parquet(tmp_path / "again/cases.parquet")
    for name in codebook.fields:
        shown = [codebook.read(line).show(name) for line in frame["code_b"]]
        if codebook.questions[name].number:
            shown = [float(text) if text else None for text in shown]
        cells = frame[f"code_b.{name}"].astype(object)
        assert [*cells.where(cells.notna(), None)] == shown
    other = [{"model": "gamma"}, {"model": "delta"}]
    carry_out(study(tmp_path, "second", content, cases, models=other), answers)
    report_drift(str(tmp_path), None)
    drift = json.loads((tmp_path / "drift.json").read_text())
    assert [*drift["unpaired"]] == ["second"] and not drift["unread"]
    assert {(each["before"], each["after"]) for each in drift["comparisons"]} == {
        ("first", "again")
    }
    assert all(each["lost"] == each["gained"] == 0 for each in drift["comparisons"])
