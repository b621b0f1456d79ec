"""Cases as tasks of Label Studio, and people's annotations back."""

import json
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from raylab.core.errors import DataError, RunError
from raylab.label.archive.records import CaseRow
from raylab.label.archive.run import RunArchive
from raylab.label.archive.store import Archive
from raylab.label.codebooks.codebook import Codebook
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.conclusions.audit import draw_audit
from raylab.label.config.codebook import CodebookConfig
from raylab.label.input.cases import Case
from raylab.label.judgement import AUDIT, DECISION, HUMAN
from raylab.label.opt.code import parse
from raylab.label.protocol.outcome import HumanDecision, Status, read_decision
from raylab.label.protocol.protocol import draw_order
from raylab.label.review.label_studio import (
    Import,
    archived_task,
    import_tasks,
    labelling_config,
    write_tasks,
    write_waiting,
)
from raylab.label.review.reviews import DecisionForm, Reviews
from raylab.label.statistics.frame import audits_of
from tests.label.protocol import chats
from tests.label.protocol.chats import BAD, CASE, DISPUTED, FIELDS
from tests.label.protocol.outcomes import CODEBOOK, answer, outcome
from tests.label.review.office import control, submission, task

JUNK = "I would rather not say."
SCRIPTS: dict[str, chats.Script] = {
    **{f"case-{number}": {**DISPUTED, "evaluate-b": BAD} for number in range(4)},
    "unparsed": {**DISPUTED, "classify-b": JUNK, "classify-b-repair": JUNK},
    "unconfirmed": {**DISPUTED, "confirm": BAD},
    "accepted": chats.AGREED,
}
ROWS = [
    chats.row_of(Case(name, CASE.description, "Swm/Sym", parse("Swm/Sym")), script)
    for name, script in SCRIPTS.items()
]
WHY = "the loop is closed"
MODELS = {"A": "alpha", "B": "beta", "adjudicator": "delta"}


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(tmp_path / "archive.db") as archive:
        yield archive


@pytest.fixture
def run(archive: Archive) -> RunArchive:
    """A run whose cases wait for a person, but for the last."""
    run = archive.start_run("r", {}, {})
    run.add_cases(ROWS)
    return run


@pytest.fixture
def reviews(run: RunArchive) -> Reviews:
    return reviews_of(run)


def reviews_of(run: RunArchive, book: Codebook = CODEBOOK, people: int = 1) -> Reviews:
    return Reviews(run, book, 307, timedelta(minutes=10), people)


def import_all(path: Path, reviews: Reviews, *tasks: object, reviewer: str | None = None) -> Import:
    """Imports a file of tasks in a directory."""
    file = path / "review.json"
    file.write_text(json.dumps(tasks))
    return import_tasks(file, reviews, reviewer)


def export_all(path: Path, reviews: Reviews, kind: str = "") -> dict[str, dict[str, Any]]:
    """The tasks of the cases that wait, by their case."""
    file = path / "review.json"
    file.unlink(missing_ok=True)
    written, config = write_waiting(file, reviews, kind)
    assert config.read_text() == labelling_config(reviews.codebook)
    tasks = json.loads(file.read_text())
    assert len(tasks) == written
    return {one["data"]["case"]: one for one in tasks}


def fields(one: dict[str, Any]) -> dict[str, str]:
    return {result["from_name"]: result["value"]["text"][0] for result in one["result"]}


def by_model(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {answer["model_version"]: answer for answer in one["predictions"]}


def decisions(
    run: RunArchive, kind: str = DECISION, book: Codebook = CODEBOOK
) -> list[HumanDecision]:
    rows = [row for row in run.decisions(kind=kind) if row.action != "draw"]
    return [read_decision(row.body, book) for row in rows]


def test_a_task_shows_what_a_person_needs(tmp_path: Path, reviews: Reviews) -> None:
    tasks = export_all(tmp_path, reviews)
    assert tasks.keys() == SCRIPTS.keys() - {"accepted"}
    assert tasks["unconfirmed"]["data"] == {
        "case": "unconfirmed",
        "queue": "decision",
        "reason": "the adjudicated code is not acceptable: FAIL 40",
        "description": CASE.description,
    }
    answers, unparsed = by_model(tasks["unconfirmed"]), by_model(tasks["unparsed"])
    assert fields(answers["A"])["decision"] == f"OPT=Ctl{FIELDS}"
    assert fields(answers["B"])["justification"] == "it adapts" and answers["B"]["score"] == 0.75
    assert fields(answers["adjudicator"])["decision"] == f"OPT=Lrn+Ctl{FIELDS}"
    assert "decision" not in fields(unparsed["B"]) and "adjudicator" not in unparsed
    orders = {name: tuple(by_model(one))[:2] for name, one in tasks.items()}
    assert orders == {name: draw_order(307, name, "AB") for name in tasks}
    for word in ("alpha", "beta", "gamma", "delta", "model-1", "Swm/Sym"):
        assert word not in json.dumps(tasks)
    # Whoever filled the file in loses nothing.
    with pytest.raises(RunError, match="exists: archive the decisions in it by import="):
        write_waiting(tmp_path / "review.json", reviews)


def test_annotations_come_back(tmp_path: Path, run: RunArchive, reviews: Reviews) -> None:
    tasks = export_all(tmp_path, reviews)
    side, first = next(iter(by_model(tasks["case-3"]).items()))
    taken = fields(first)["decision"]
    said: dict[str, dict[str, Any]] = {
        "case-0": submission(decision="A", justification=WHY, reviewer="Ada"),
        "case-1": submission({"email": "bo@lab.example"}, decision="b", justification=WHY),
        "case-2": submission(None, decision=" Evo/Lrn ", justification=WHY, insist="false"),
        "case-3": submission(decision=taken, justification=WHY, insist="true"),
        # A choice says the same as a text.
        "unparsed": submission(3, control("decision", "choices", "unclear"), justification=WHY),
        "unconfirmed": submission(decision="A") | {"was_cancelled": True},
    }
    filled = [one | {"annotations": [said[name]]} for name, one in tasks.items()]
    summary = "5 decisions, 5 new, 1 cancelled, 3 unconfirmed"
    assert str(import_all(tmp_path, reviews, *filled, reviewer="Di")) == summary
    made = {one.case: one for one in decisions(run)}
    shown = {name: (one.choice, one.insisted, one.reviewer) for name, one in made.items()}
    assert shown == {
        "case-0": ("A", False, "Ada"),
        "case-1": ("B", False, "bo@lab.example"),
        "case-2": ("own", False, "Di"),
        # Nobody signs for another account.
        "case-3": (side, True, "user 3"),
        "unparsed": ("unclear", False, "user 3"),
    }
    assert str(made["case-2"].label) == "OPT=Evo/Lrn" and str(made["case-3"].label) == taken
    assert {one.justification for one in made.values()} == {WHY}
    assert run.counts(now=True) == {"unconfirmed": 3, "accepted": 2, "unclear": 1, "human": 1}
    # A file that is imported again says nothing new, and nobody overrules somebody else.
    again = import_all(tmp_path, reviews, *filled, reviewer="Di")
    assert str(again) == "5 decisions, 0 new, 1 cancelled"
    other = task("case-0", submission(decision="B", justification=WHY, reviewer="Bo"))
    told = "1 decision, 0 new, 1 left out:\n  Bo: case case-0 is decided by Ada"
    assert str(import_all(tmp_path, reviews, other)) == told
    assert export_all(tmp_path, reviews).keys() == {"unconfirmed"}


# Files of other codebooks, and as Label Studio itself writes them.

LINE = 'level: "3", topics: [billing, refund], words: none'
TICKETS = {
    "level": {"labels": dict.fromkeys("12345", "A grade."), "distance": "graded"},
    "topics": {"labels": dict.fromkeys(("billing", "refund", "login"), "A."), "several": True},
    "words": {"text": 80, "optional": True},
}


def book_of(labels: Any = None, **fields: Any) -> Codebook:
    config = {"name": "tickets", "task": "Say it.", "labels": labels, "fields": fields}
    return make_codebook(CodebookConfig.model_validate(config))


def run_of(archive: Archive, book: Codebook, cases: Iterable[str], a: Any = None) -> RunArchive:
    """Cases of another codebook that wait, whose first annotator answered `a`."""
    run = archive.start_run("r", {}, {})
    read = answer(None).model_copy(update={"label": a and book.read(a), "format": "strict"})
    left: dict[str, Any] = {"status": Status.HUMAN, "path": ("human:unparsable",)}
    for name in cases:
        body = outcome(name, read, answer(None), answer(None), **left).model_dump(mode="json")
        run.add_cases([CaseRow(name, f"hash of {name}", f"Question {name}.", HUMAN, body)])
    return run


CHOICES = [
    control("topics", "choices", "refund", "billing"),
    {"from_name": "Level", "type": "rating", "value": {"rating": 3}},
    control("words", "textarea", "none"),
]
EVE, MAX = ({"id": place, "email": f"{name}@x.org"} for place, name in enumerate(("eve", "max")))
TYPED = submission(EVE, decision=LINE, justification="seen")
OTHER = submission(MAX, decision=LINE)
CANCELLED = TYPED | {"was_cancelled": True}
MIN = {"id": 9, "description": "Question t1.", "case": "t1", "annotator": 7, "annotation_id": 3}
MIN_FILE = [
    MIN | {"level": "3", "topics": {"choices": ["refund", "billing"]}, "words": "none"},
    MIN | {"annotator": "eve@x.org", "level": [{"rating": 3}], "topics": "billing"},
    MIN | {"case": "t2", "annotator": None, "annotation_id": None},
]
LINES = "\n".join(json.dumps(task(name, TYPED)) for name in ("t1", "t2"))
UNKNOWN = [
    task("t1", submission(EVE, *CHOICES, control("tag", "rectanglelabels", "Car"))),
    task("t2", submission(EVE, control("topics", "choices", "taxes"))),
    task("t2", submission(EVE, control("topic", "choices", "billing"))),
]
# HumanSignal/label-studio-sdk, tests/custom/converter/data/test_export_csv/csv_test_history.json
SERGEI = {"id": 14, "email": "sergei@heartex.test", "first_name": "", "last_name": ""}
HISTORY = submission(SERGEI, control("sentiment", "choices", "Positive"))
# HumanSignal/label-studio-converter, tests/data/test_export_json_min/data_repeater.json
REGIONS = submission(
    1,
    control("labels_0", "rectanglelabels", "Document Title", x=19.5, y=53.7),
    control("categories_0", "taxonomy", ["Archaea"], x=19.5, y=53.7),
)
# HumanSignal/label-studio-frontend, src/examples/classification_mixed/annotations/1.json
MIXED = submission(
    None,
    control("num", "number", 2),
    control("dt", "datetime", "1991-05-22T09:17"),
    control("txt", "textarea", "Hello", "World"),
    control("choices", "choices", "Choice 1"),
    control("taxonomy", "taxonomy", ["Choice 2", "Choice 2.1"]),
)
BOOK = book_of(**TICKETS), LINE
SIGN = book_of({"Positive": "Good.", "Negative": "Bad."}), "Positive"
LIFE = book_of({"Archaea": "One.", "Bacteria": "Another."}), "Archaea"
CHOICE = {"labels": dict.fromkeys(("Choice 1", "Choice 2.1"), "A choice.")}
FORM = (
    book_of(num={"number": [0, 5]}, txt={"text": 20}, choices=CHOICE, taxonomy=CHOICE),
    "num: 2, txt: Hello World, choices: Choice 1, taxonomy: Choice 2.1",
)
OPEN, BOX = "1 without a submitted annotation", "(rectanglelabels) not understood"
# The codebook and the code, the file, who decided, and what is counted beside new decisions.
FILES: dict[str, tuple[tuple[Codebook, str], Any, str, str]] = {
    "choices": (BOOK, [task("t1", submission(EVE, *CHOICES))], "eve@x.org", ""),
    "min": (BOOK, [MIN | {"decision": LINE, "justification": "seen"}], "user-7", ""),
    "min of controls": (BOOK, MIN_FILE, "user-7", f"{OPEN}, 1 left out"),
    "min of labels": (SIGN, [MIN | {"mood": "Positive", "by": "me"}], "user-7", ""),
    "lines": (BOOK, LINES, "eve@x.org eve@x.org", ""),
    "one": (BOOK, json.dumps(task("t1", TYPED), indent=2), "eve@x.org", ""),
    "bom": (BOOK, "\ufeff" + json.dumps([task("t1", TYPED)]), "eve@x.org", ""),
    "no reason": (BOOK, [task("t1", OTHER)], "max@x.org", ""),
    "drafts": (BOOK, [task("t1") | {"drafts": [TYPED]}], "", OPEN),
    "cancelled": (
        BOOK,
        [task("t1", CANCELLED, submission(EVE), TYPED)],
        "eve@x.org",
        "1 cancelled, 1 empty",
    ),
    "two": (BOOK, [task("t1", TYPED, OTHER)], "eve@x.org", "1 left out"),
    "unknown": (BOOK, UNKNOWN, "eve@x.org", f"1 with tag {BOX}, 2 not read"),
    "wrong": (SIGN, [task("t1", submission(1, control("x", "choices", "ok")))], "", "1 not read"),
    "history": (SIGN, [task("t1", HISTORY)], "sergei@heartex.test", ""),
    "regions": (LIFE, [task("t1", REGIONS)], "user-1", f"1 with labels_0 {BOX}"),
    "mixed": (FORM, [task("t1", MIXED)], "Di", "1 with dt (datetime) not understood"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_as_label_studio_writes_them(tmp_path: Path, archive: Archive, name: str) -> None:
    (book, line), content, people, counts = FILES[name]
    run, file, told = run_of(archive, book, ("t1", "t2")), tmp_path / "export.json", ""
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    for new in (len(people.split()), 0):
        try:
            told = str(import_tasks(file, reviews_of(run, book), "Di"))
        except DataError as error:
            told = str(error).partition("archive: ")[2]
            assert not people
        head = told.partition(":\n  ")[0].split(", ")
        assert head[1] == f"{new} new"
        assert {*head[2:]} - {f"{new} unconfirmed"} == {*counts.split(", ")} - {""}
    made = decisions(run, book=book)
    assert [one.reviewer.replace(" ", "-") for one in made] == people.split()
    assert {str(one.label) for one in made} <= {line}
    if name == "unknown":
        assert "task 2: case t2: level: is needed" in told
        assert "has no decision in level, topics, words, decision, but topic (choices)" in told


def test_controls_are_those_of_the_codebook(tmp_path: Path, archive: Archive) -> None:
    fields = {**TICKETS, "share": {"number": [0, 1.5]}, "reason": {"text": 9, "optional": True}}
    book = book_of(**fields)
    view = ElementTree.fromstring(labelling_config(book))
    inputs = {one.get("name"): one for one in view if one.get("toName") == "description"}
    assert " ".join(f"{name}:{one.tag}" for name, one in inputs.items()) == (
        "level:Choices topics:Choices words:TextArea share:Number field-reason:TextArea "
        "decision:Choices justification:TextArea insist:Choices reviewer:TextArea"
    )
    assert [inputs[name].get("choice") for name in ("level", "topics")] == ["single", "multiple"]
    assert [one.get("value") for one in inputs["topics"]] == ["billing", "refund", "login"]
    assert (inputs["share"].get("min"), inputs["share"].get("max")) == ("0", "1.5")
    line = f"{LINE}, share: 0.5, reason: late"
    run = run_of(archive, book, ("t1", "t2"), line)
    prediction = by_model(export_all(tmp_path, reviews_of(run, book))["t1"])["A"]
    values = {
        one["from_name"]: (one["type"], *one["value"].values()) for one in prediction["result"]
    }
    assert values == {
        "level": ("choices", ["3"]),
        "topics": ("choices", ["billing", "refund"]),
        "words": ("textarea", ["none"]),
        "share": ("number", 0.5),
        "field-reason": ("textarea", ["late"]),
        "justification": ("textarea", ["since"]),
    }
    # Whoever takes a prediction over decides for its annotator.
    taken = task("t1", submission(EVE, *prediction["result"]))
    other = task("t2", submission(EVE, control("decision", "choices", "unclear")))
    assert import_all(tmp_path, reviews_of(run, book), taken, other).new == 2
    made = [(one.choice, one.label and str(one.label)) for one in decisions(run, book=book)]
    assert made == [("A", line), ("unclear", None)]


def test_a_label_may_have_the_name_of_an_annotator(tmp_path: Path, archive: Archive) -> None:
    book = book_of({name: f"Answer {name}." for name in "BCD"})
    said = {"one": "B", "two": "C", "three": "a"}
    run = run_of(archive, book, said, "B")
    tasks = [task(name, submission(decision=line)) for name, line in said.items()]
    assert import_all(tmp_path, reviews_of(run, book), *tasks).new == 3
    made = [(one.choice, str(one.label)) for one in decisions(run, book=book)]
    # What A answered is taken from A; the other two could not be read.
    assert made == [("A", "B"), ("own", "C"), ("A", "B")]
    with pytest.raises(DataError, match="'E' is none of A, B, C, unclear, undo and not a"):
        import_all(tmp_path, reviews_of(run, book), task("two", submission(decision="E")))


def test_what_cannot_be_read_is_named_and_the_rest_is_taken(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    def wrong(case: str = "case-0", **said: Any) -> dict[str, Any]:
        said = {"decision": "A", "justification": WHY, "reviewer": "Ada", **said}
        return task(case, submission(None, **said))

    problems: list[tuple[Any, str]] = [
        (wrong("other"), "run r has no case 'other'"),
        (wrong() | {"data": {"id": 3}}, "in the tasks that export= writes; it has id"),
        (wrong(reviewer=""), "case case-0 is signed by nobody: give reviewer="),
        (wrong(decision=""), "case-0 has no decision in decision, but justification, reviewer"),
        (wrong(decision="C"), "'C' is none of A, B, unclear, undo and not an OPT-Code: "),
        (wrong(decision="The answer is OPT=Evo"), "is none of A, B"),
        (
            wrong() | {"data": {"case": "case-0", "description": "another"}},
            "is not the one that was classified",
        ),
        (wrong("accepted"), "case accepted is accepted, no person was asked"),
        (wrong("unparsed", decision="B"), "B has no code"),
        (wrong() | {"annotations": 3}, "Expected `array | null`, got `int` - at"),
        (3, "Expected `object`, got `int`"),
    ]
    told = import_all(tmp_path, reviews, wrong("case-1"), *(one for one, _ in problems))
    head, *lines = str(told).split("\n  task ")
    assert head == f"1 decision, 1 new, {len(problems)} not read, 1 unconfirmed:"
    for (number, (_, problem)), line in zip(enumerate(problems, 2), lines, strict=True):
        assert line.startswith(f"{number}: ") and problem in line
    assert [one.case for one in decisions(run)] == ["case-1"]
    with pytest.raises(DataError, match=r"nothing to archive: 0 decisions, 0 new, 60 not read:"):
        import_all(tmp_path, reviews, *[3] * 60)
    with pytest.raises(DataError, match=r"gone\.json cannot be read"):
        import_tasks(tmp_path / "gone.json", reviews)
    contents = {"case,label": "JSON or JSON-MIN", "[{": "not JSON", "{": "not JSON"}
    for content, problem in contents.items():
        (tmp_path / "review.json").write_text(content)
        with pytest.raises(DataError, match=problem):
            import_tasks(tmp_path / "review.json", reviews)


# The audit, and two people


def test_drawn_cases_go_out_blind_and_come_back_as_codes(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    draw_audit(run, 1.0, seed=5)
    (drawn,) = export_all(tmp_path, reviews, AUDIT).values()
    assert (drawn["data"]["case"], drawn["data"]["queue"]) == ("accepted", "audit")
    assert drawn["data"]["description"] == CASE.description and "Ctl" not in json.dumps(drawn)
    assert (drawn["data"]["reason"], drawn["predictions"]) == (None, [])
    with pytest.raises(DataError, match="'A' is none of"):
        import_all(tmp_path, reviews, task("accepted", submission(decision="A")))
    coded = task("accepted", submission(decision="Evo", insist="true"))
    assert [import_all(tmp_path, reviews, coded).new for _ in range(2)] == [1, 0]
    (made,) = decisions(run, AUDIT)
    assert (str(made.label), made.reviewer) == ("OPT=Evo", "user 3")
    assert (made.insisted, decisions(run), run.counts(now=True)["accepted"]) == (False, [], 1)
    assert export_all(tmp_path, reviews, AUDIT) == {}
    # An export of the run has the code after the decisions.
    (current,) = run.cases("accepted")
    (shown,) = archived_task(current, CODEBOOK, MODELS, audits_of(run)["accepted"])["annotations"]
    assert fields(shown) == {"decision": "OPT=Evo", "reviewer": "user 3"}


def test_two_annotators_of_a_task_are_two_judges(tmp_path: Path, run: RunArchive) -> None:
    reviews = reviews_of(run, people=2)
    tasks = export_all(tmp_path, reviews)
    assert all(one["predictions"] == [] and not one["data"]["reason"] for one in tasks.values())
    said = {"case-0": "3 Evo, 4 Evo", "case-1": "3 Evo, 4 Sch", "case-2": "3 Evo, 3 Sch"}
    filled = [
        task(name, *(submission(int(one[0]), decision=one[2:]) for one in both.split(", ")))
        for name, both in said.items()
    ]
    left = "\n  user 3: you have judged case case-2: it waits for somebody else"
    told = f"6 decisions, 5 new, 1 unconfirmed, 1 left out:{left}"
    assert str(import_all(tmp_path, reviews, *filled)) == told
    assert import_all(tmp_path, reviews, *filled).new == 0
    # What differs goes out with both judgements, for a third.
    (shown,) = (one for one in export_all(tmp_path, reviews).values() if one["predictions"])
    assert shown["data"]["case"] == "case-1"
    judged = [one for name, one in by_model(shown).items() if "judgement" in name]
    assert [fields(one)["decision"] for one in judged] == ["OPT=Evo", "OPT=Sch"]


def test_a_run_goes_out_and_back(
    tmp_path: Path, archive: Archive, run: RunArchive, reviews: Reviews
) -> None:
    pair = reviews_of(run, people=2)
    acts: list[tuple[Reviews, int, str, Any]] = [
        (reviews, 1, "Ada", {"choice": "A", "justification": "é\n\U0001f600"}),
        (reviews, 2, "Bo", {"choice": "own", "code": "Evo/Lrn", "justification": WHY}),
        (reviews, 3, "Ada", {"choice": "unclear", "justification": WHY}),
        (reviews, 4, "Ada", {"choice": "B", "justification": WHY, "insist": True}),
        (pair, 5, "Ada", {"choice": "own", "code": "Sch"}),
        (pair, 5, "Bo", {"choice": "own", "code": "Lrn"}),
        (pair, 5, "Cy", {"choice": "second", "justification": WHY}),
        (pair, 6, "Ada", {"choice": "unclear"}),
        (pair, 6, "Bo", {"choice": "unclear"}),
    ]
    for those, case, name, said in acts:
        those.submit(case, name, DecisionForm(**said, shown=those.look(case).standing.shown))
    reviews.undo(3, "Ada")
    with (tmp_path / "all.json").open("wb") as file:
        write_tasks((archived_task(one, CODEBOOK, MODELS) for one in run.cases()), file)
    tasks = json.loads((tmp_path / "all.json").read_text())
    codes = {
        one["data"]["case"]: {
            model: fields(answer).get("decision") for model, answer in by_model(one).items()
        }
        for one in tasks
    }
    assert codes["unconfirmed"].keys() == {"alpha", "beta", "delta"}
    assert codes["accepted"] == dict.fromkeys(("alpha", "beta", "final"), f"OPT=Ctl{FIELDS}")
    copy = archive.start_run("copy", {}, {})
    copy.add_cases(ROWS)
    for people, part in ((1, tasks[:4]), (2, tasks[4:])):
        those = reviews_of(copy, people=people)
        assert [import_all(tmp_path, those, *part).new for _ in range(2)] == [5, 0]
    at = {"decided": decisions(run)[0].decided}
    # Tasks are imported by case, so the order of decisions holds within one.
    first, second = (
        sorted((one.model_copy(update=at) for one in decisions(each)), key=lambda one: one.case)
        for each in (run, copy)
    )
    assert first == second
    assert [row.status for row in run.cases()] == [row.status for row in copy.cases()]
