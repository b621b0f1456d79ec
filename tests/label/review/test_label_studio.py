"""Cases as tasks of Label Studio, and people's annotations back."""

import json
from collections.abc import Iterator
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
from tests.label.review.studio import annotation, task

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


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunArchive]:
    """A run whose cases wait for a person, but for the last."""
    with Archive.open(tmp_path / "archive.db") as archive:
        archived = archive.start_run("r", {}, {})
        archived.add_cases(ROWS)
        yield archived


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[RunArchive]:
    """A run without cases."""
    with Archive.open(tmp_path / "bare.db") as archive:
        yield archive.start_run("bare", {}, {})


@pytest.fixture
def reviews(run: RunArchive) -> Reviews:
    return Reviews(run, CODEBOOK, 307, timedelta(minutes=10))


def file_of(path: Path, *tasks: object) -> Path:
    """A file of tasks; text stands as it is."""
    file = path / "review.json"
    shown = (one if isinstance(one, str) else json.dumps(one) for one in tasks)
    file.write_text(f"[{','.join(shown)}]", encoding="utf-8")
    return file


def exported(path: Path, reviews: Reviews, kind: str = "") -> dict[str, dict[str, Any]]:
    file = path / "review.json"
    file.unlink(missing_ok=True)
    written, config = write_waiting(file, reviews, kind)
    assert config.read_text() == labelling_config(reviews.codebook)
    tasks = json.loads(file.read_text())
    assert len(tasks) == written
    return {one["data"]["case"]: one for one in tasks}


def fields(one: dict[str, Any]) -> dict[str, str]:
    return {result["from_name"]: result["value"]["text"][0] for result in one["result"]}


def decisions(run: RunArchive, kind: str = DECISION) -> list[HumanDecision]:
    rows = [row for row in run.decisions(kind=kind) if row.action != "draw"]
    return [read_decision(row.body, CODEBOOK) for row in rows]


def test_a_task_shows_what_a_person_needs(tmp_path: Path, reviews: Reviews) -> None:
    tasks = exported(tmp_path, reviews)
    assert tasks.keys() == SCRIPTS.keys() - {"accepted"}
    shown = tasks["unconfirmed"]
    assert shown["data"] == {
        "case": "unconfirmed",
        "queue": "decision",
        "reason": "the adjudicated code is not acceptable: FAIL 40",
        "description": CASE.description,
    }
    answers = {one["model_version"]: one for one in shown["predictions"]}
    assert fields(answers["A"])["decision"] == f"OPT=Ctl{FIELDS}"
    assert fields(answers["B"])["justification"] == "it adapts" and answers["B"]["score"] == 0.75
    assert fields(answers["adjudicator"])["decision"] == f"OPT=Lrn+Ctl{FIELDS}"
    unparsed = {one["model_version"]: one for one in tasks["unparsed"]["predictions"]}
    assert "decision" not in fields(unparsed["B"]) and "adjudicator" not in unparsed
    orders = {
        name: tuple(answer["model_version"] for answer in one["predictions"])[:2]
        for name, one in tasks.items()
    }
    assert orders == {name: draw_order(307, name, "AB") for name in tasks}
    for word in ("alpha", "beta", "gamma", "delta", "model-1", "Swm/Sym"):
        assert word not in json.dumps(tasks)
    # Whoever filled the file in loses nothing.
    with pytest.raises(RunError, match="exists: archive the decisions in it by import="):
        write_waiting(tmp_path / "review.json", reviews)


WHY = "the loop is closed"


def test_annotations_come_back(tmp_path: Path, run: RunArchive, reviews: Reviews) -> None:
    tasks = exported(tmp_path, reviews)
    taken = fields(tasks["case-3"]["predictions"][0])["decision"]
    said: dict[str, dict[str, Any]] = {
        "case-0": annotation(decision="A", justification=WHY, reviewer="Ada"),
        "case-1": annotation({"email": "bo@lab.example"}, decision="b", justification=WHY),
        "case-2": annotation(None, decision=" Evo/Lrn ", justification=WHY, insist="false"),
        "case-3": annotation(decision=taken, justification=WHY, insist="true"),
        "unparsed": annotation(decision="unclear", justification=WHY),
        "unconfirmed": annotation(decision="A") | {"was_cancelled": True},
    }
    # A choice says the same as a text.
    said["unparsed"]["result"][0] |= {"type": "choices", "value": {"choices": ["unclear"]}}
    file = file_of(tmp_path, *(one | {"annotations": [said[name]]} for name, one in tasks.items()))
    summary = "5 decisions, 5 new, 1 cancelled, 3 unconfirmed"
    assert str(import_tasks(file, reviews, "Di")) == summary
    made = {one.case: one for one in decisions(run)}
    side = tasks["case-3"]["predictions"][0]["model_version"]
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
    assert str(import_tasks(file, reviews, "Di")) == "5 decisions, 0 new, 1 cancelled"
    said["case-0"] = annotation(decision="B", justification=WHY, reviewer="Bo")
    done = import_tasks(file_of(tmp_path, task("case-0", said["case-0"])), reviews)
    assert str(done) == "1 decision, 0 new, 1 left out:\n  Bo: case case-0 is decided by Ada"
    assert exported(tmp_path, reviews).keys() == {"unconfirmed"}


LINE = 'level: "3", topics: [billing, refund], words: none'
TICKETS = {
    "level": {"labels": dict.fromkeys("12345", "A grade."), "distance": "graded"},
    "topics": {"labels": dict.fromkeys(("billing", "refund", "login"), "A."), "several": True},
    "words": {"text": 80, "optional": True},
}


def book_of(labels: Any = None, **fields: Any) -> Codebook:
    config = {"name": "tickets", "task": "Say it.", "labels": labels, "fields": fields}
    return make_codebook(CodebookConfig.model_validate(config))


def reviews_of(run: RunArchive, book: Codebook, *cases: str, a: Any = None) -> Reviews:
    """Cases of another codebook that wait, whose first annotator answered `a`."""
    read = answer(None).model_copy(update={"label": a and book.read(a), "format": "strict"})
    for name in cases:
        case = outcome(
            name, read, answer(None), answer(None), status=Status.HUMAN, path=("human:unparsable",)
        )
        body = case.model_dump(mode="json")
        run.add_cases([CaseRow(name, f"hash of {name}", f"Question {name}.", HUMAN, body)])
    return Reviews(run, book, 307, timedelta(minutes=10))


def control(name: str, kind: str, *items: Any, **region: Any) -> dict[str, Any]:
    key, value = {"textarea": "text"}.get(kind, kind), items[0] if kind == "number" else items
    return {"from_name": name, "type": kind, "value": {**region, key: value}, "origin": "manual"}


def by(who: Any, *controls: dict[str, Any]) -> dict[str, Any]:
    return annotation(who) | {"result": [*controls]}


CHOICES = [
    control("topics", "choices", "refund", "billing"),
    {"from_name": "Level", "type": "rating", "value": {"rating": 3}},
    control("words", "textarea", "none"),
]
EVE, MAX = ({"id": place, "email": f"{name}@x.org"} for place, name in enumerate(("eve", "max")))
TYPED = annotation(EVE, decision=LINE, justification="seen")
OTHER = annotation(MAX, decision=LINE)
CANCELLED = TYPED | {"was_cancelled": True}
MIN = {"id": 9, "description": "Question t1.", "case": "t1", "annotator": 7, "annotation_id": 3}
MIN_FILE = [
    MIN | {"level": "3", "topics": {"choices": ["refund", "billing"]}, "words": "none"},
    MIN | {"annotator": "eve@x.org", "level": [{"rating": 3}], "topics": "billing"},
    MIN | {"case": "t2", "annotator": None, "annotation_id": None},
]
LINES = "\n".join(json.dumps(task(name, TYPED)) for name in ("t1", "t2"))
UNKNOWN = [
    task("t1", by(EVE, *CHOICES, control("tag", "rectanglelabels", "Car"))),
    task("t2", by(EVE, control("topics", "choices", "taxes"))),
    task("t2", by(EVE, control("topic", "choices", "billing"))),
]
# HumanSignal/label-studio-sdk, tests/custom/converter/data/test_export_csv/csv_test_history.json
SERGEI = {"id": 14, "email": "sergei@heartex.test", "first_name": "", "last_name": ""}
HISTORY = by(SERGEI, {"id": "d1uGfhDvN6", **control("sentiment", "choices", "Positive")})
# HumanSignal/label-studio-converter, tests/data/test_export_json_min/data_repeater.json
REGIONS = by(
    1,
    control("labels_0", "rectanglelabels", "Document Title", x=19.5, y=53.7),
    control("categories_0", "taxonomy", ["Archaea"], x=19.5, y=53.7),
)
# HumanSignal/label-studio-frontend, src/examples/classification_mixed/annotations/1.json
MIXED = by(
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
MIXED_LINE = "num: 2, txt: Hello World, choices: Choice 1, taxonomy: Choice 2.1"
CHOICE = {"labels": dict.fromkeys(("Choice 1", "Choice 2.1"), "A choice.")}
MIXED_FIELDS = {
    "num": {"number": [0, 5]},
    "txt": {"text": 20},
    "choices": CHOICE,
    "taxonomy": CHOICE,
}
FORM = book_of(**MIXED_FIELDS), MIXED_LINE
OPEN, BOX = "1 without a submitted annotation", "(rectanglelabels) not understood"
# The codebook and the code, the file, who decided, and what is counted beside new decisions.
FILES: dict[str, tuple[tuple[Codebook, str], Any, str, str]] = {
    "choices": (BOOK, [task("t1", by(EVE, *CHOICES))], "eve@x.org", ""),
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
        [task("t1", CANCELLED, by(EVE), TYPED)],
        "eve@x.org",
        "1 cancelled, 1 empty",
    ),
    "two": (BOOK, [task("t1", TYPED, OTHER)], "eve@x.org", "1 left out"),
    "unknown": (BOOK, UNKNOWN, "eve@x.org", f"1 with tag {BOX}, 2 not read"),
    "wrong": (SIGN, [task("t1", by(1, control("x", "choices", "ok")))], "", "1 not read"),
    "history": (SIGN, [task("t1", HISTORY)], "sergei@heartex.test", ""),
    "regions": (LIFE, [task("t1", REGIONS)], "user-1", f"1 with labels_0 {BOX}"),
    "mixed": (FORM, [task("t1", MIXED)], "Di", "1 with dt (datetime) not understood"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_as_label_studio_writes_them(tmp_path: Path, bare: RunArchive, name: str) -> None:
    (book, line), content, people, counts = FILES[name]
    reviews, file, told = reviews_of(bare, book, "t1", "t2"), tmp_path / "export.json", ""
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    for new in (len(people.split()), 0):
        try:
            told = str(import_tasks(file, reviews, "Di"))
        except DataError as error:
            told = str(error).partition("archive: ")[2]
            assert not people
        head = told.partition(":\n  ")[0].split(", ")
        assert head[1] == f"{new} new"
        assert {*head[2:]} - {f"{new} unconfirmed"} == {*counts.split(", ")} - {""}
    made = [read_decision(row.body, book) for row in bare.decisions()]
    assert [one.reviewer.replace(" ", "-") for one in made] == people.split()
    assert {str(one.label) for one in made} <= {line}
    if name == "unknown":
        assert "task 2: case t2: level: is needed" in told
        assert "has no decision in level, topics, words, decision, but topic (choices)" in told


def test_controls_are_those_of_the_codebook(tmp_path: Path, bare: RunArchive) -> None:
    fields = {**TICKETS, "share": {"number": [0, 1.5]}, "reason": {"text": 9, "optional": True}}
    book = book_of(**fields)
    view = ElementTree.fromstring(labelling_config(book))
    names = ["level", "topics", "words", "share", "field-reason"]
    tags = ["Choices", "Choices", "TextArea", "Number", "TextArea"]
    inputs = {one.get("name"): one for one in view if one.get("toName") == "description"}
    assert [*inputs] == [*names, "decision", "justification", "insist", "reviewer"]
    assert [inputs[name].tag for name in names] == tags
    assert [inputs[name].get("choice") for name in names[:2]] == ["single", "multiple"]
    assert [one.get("value") for one in inputs["topics"]] == ["billing", "refund", "login"]
    assert (inputs["share"].get("min"), inputs["share"].get("max")) == ("0", "1.5")
    line = f"{LINE}, share: 0.5, reason: late"
    reviews = reviews_of(bare, book, "t1", "t2", a=line)
    shown = exported(tmp_path, reviews)["t1"]["predictions"]
    (prediction,) = (one for one in shown if one["model_version"] == "A")
    values = {
        one["from_name"]: (one["type"], *one["value"].values()) for one in prediction["result"]
    }
    assert values.pop("justification") == ("textarea", ["since"])
    assert values == {
        "level": ("choices", ["3"]),
        "topics": ("choices", ["billing", "refund"]),
        "words": ("textarea", ["none"]),
        "share": ("number", 0.5),
        "field-reason": ("textarea", ["late"]),
    }
    # Whoever takes a prediction over decides for its annotator.
    taken = by(EVE, *prediction["result"])
    other = by(EVE, control("decision", "choices", "unclear"))
    file = file_of(tmp_path, task("t1", taken), task("t2", other))
    assert import_tasks(file, reviews).new == 2
    assert [(row.body["choice"], row.body["label"]) for row in bare.decisions()] == [
        ("A", line),
        ("unclear", None),
    ]


def test_a_label_may_have_the_name_of_an_annotator(tmp_path: Path, bare: RunArchive) -> None:
    book = book_of({name: f"Answer {name}." for name in "BCD"})
    said = {"one": "B", "two": "C", "three": "a"}
    reviews = reviews_of(bare, book, *said, a="B")
    tasks = (
        task(name, annotation(decision=line, justification=WHY, reviewer="Ada"))
        for name, line in said.items()
    )
    assert import_tasks(file_of(tmp_path, *tasks), reviews).new == 3
    made = [read_decision(row.body, book) for row in bare.decisions()]
    # What A answered is taken from A; the other two could not be read.
    assert [(one.choice, str(one.label)) for one in made] == [("A", "B"), ("own", "C"), ("A", "B")]
    wrong = task("two", annotation(decision="E", justification=WHY, reviewer="Ada"))
    with pytest.raises(DataError, match="'E' is none of A, B, C, unclear, undo and not a"):
        import_tasks(file_of(tmp_path, wrong), reviews)


SAID = {"decision": "A", "justification": WHY, "reviewer": "Ada"}


def wrong(case: str = "case-0", about: dict[str, Any] | None = None, **said: Any) -> dict[str, Any]:
    return task(case, annotation(None, **{**SAID, **said}), **(about or {}))


PROBLEMS: list[tuple[object, str]] = [
    (wrong("other"), "run r has no case 'other'"),
    (
        {"data": {"id": 3}, "annotations": [annotation(decision="A")]},
        "in the tasks that export= writes; it has id",
    ),
    (wrong(reviewer=""), "case case-0 is signed by nobody: give reviewer="),
    (wrong(decision=""), "case-0 has no decision in decision, but justification, reviewer"),
    (wrong(decision="C"), "'C' is none of A, B, unclear, undo and not an OPT-Code: "),
    (wrong(decision="The answer is OPT=Evo"), "is none of A, B"),
    (wrong(about={"description": "another"}), "is not the one that was classified"),
    (wrong("accepted"), "case accepted is accepted, no person was asked"),
    (wrong("unparsed", decision="B"), "B has no code"),
    ({"data": {"case": "case-2"}, "annotations": 3}, "Expected `array | null`, got `int` - at"),
    (3, "Expected `object`, got `int`"),
]


def test_what_cannot_be_read_is_named_and_the_rest_is_taken(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    told = import_tasks(file_of(tmp_path, wrong("case-1"), *(one for one, _ in PROBLEMS)), reviews)
    head, *lines = str(told).split("\n  task ")
    assert head == f"1 decision, 1 new, {len(PROBLEMS)} not read, 1 unconfirmed:"
    for (number, (_, problem)), line in zip(enumerate(PROBLEMS, 2), lines, strict=True):
        assert line.startswith(f"{number}: ") and problem in line
    assert [one.case for one in decisions(run)] == ["case-1"]
    with pytest.raises(DataError, match=r"nothing to archive: 0 decisions, 0 new, 60 not read:"):
        import_tasks(file_of(tmp_path, *["3"] * 60), reviews)
    with pytest.raises(DataError, match=r"gone\.json cannot be read"):
        import_tasks(tmp_path / "gone.json", reviews)
    for content, problem in (
        ("case,label", "JSON or JSON-MIN"),
        ("[{", "not JSON"),
        ("{", "not JSON"),
    ):
        file_of(tmp_path).write_text(content)
        with pytest.raises(DataError, match=problem):
            import_tasks(tmp_path / "review.json", reviews)


def test_drawn_cases_go_out_blind_and_come_back_as_codes(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    draw_audit(run, 1.0, seed=5)
    (drawn,) = exported(tmp_path, reviews, AUDIT).values()
    assert (drawn["data"]["case"], drawn["data"]["queue"]) == ("accepted", "audit")
    assert drawn["data"]["description"] == CASE.description and "Ctl" not in json.dumps(drawn)
    assert (drawn["data"]["reason"], drawn["predictions"]) == (None, [])
    file = file_of(tmp_path, task("accepted", annotation(decision="A")))
    with pytest.raises(DataError, match="'A' is none of"):
        import_tasks(file, reviews)
    file = file_of(tmp_path, task("accepted", annotation(decision="Evo", insist="true")))
    assert [import_tasks(file, reviews).new for _ in range(2)] == [1, 0]
    (made,) = decisions(run, AUDIT)
    assert (str(made.label), made.reviewer) == ("OPT=Evo", "user 3")
    assert (made.insisted, decisions(run), run.counts(now=True)["accepted"]) == (False, [], 1)
    assert exported(tmp_path, reviews, AUDIT) == {}


def test_two_annotators_of_a_task_are_two_judges(tmp_path: Path, run: RunArchive) -> None:
    reviews = Reviews(run, CODEBOOK, 307, timedelta(minutes=10), people=2)
    tasks = exported(tmp_path, reviews)
    assert all(one["predictions"] == [] and not one["data"]["reason"] for one in tasks.values())
    said = {
        "case-0": [annotation(number, decision="Evo") for number in (3, 4)],
        "case-1": [annotation(3, decision="Evo"), annotation(4, decision="Sch")],
        "case-2": [annotation(3, decision="Evo"), annotation(3, decision="Sch")],
    }
    file = file_of(tmp_path, *(task(name, *several) for name, several in said.items()))
    done = import_tasks(file, reviews)
    left = "\n  user 3: you have judged case case-2: it waits for somebody else"
    assert str(done) == f"6 decisions, 5 new, 1 unconfirmed, 1 left out:{left}"
    assert import_tasks(file, reviews).new == 0
    # What differs goes out with both judgements, for a third.
    (shown,) = (one for one in exported(tmp_path, reviews).values() if one["predictions"])
    assert shown["data"]["case"] == "case-1"
    judged = [one for one in shown["predictions"] if "judgement" in one["model_version"]]
    assert [fields(one)["decision"] for one in judged] == ["OPT=Evo", "OPT=Sch"]


MODELS = {"A": "alpha", "B": "beta", "adjudicator": "delta"}


def test_codes_of_the_audit_go_out_after_the_decisions(run: RunArchive, reviews: Reviews) -> None:
    assert draw_audit(run, 1.0, 307) == 1
    audited = reviews.look("accepted")
    form = DecisionForm(choice="own", code="Evo", justification=WHY)
    reviews.submit(audited.case.sequence, "Ada", form)
    (made,) = audits_of(run)["accepted"]
    (current,) = run.cases(places=[audited.case.sequence])
    (shown,) = archived_task(current, CODEBOOK, MODELS, [made])["annotations"]
    assert fields(shown)["decision"] == "OPT=Evo" and fields(shown)["reviewer"] == "Ada"


def test_a_run_goes_out_and_back(tmp_path: Path, run: RunArchive, reviews: Reviews) -> None:
    pair = Reviews(run, CODEBOOK, 307, timedelta(minutes=10), people=2)
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
    with Archive.open(tmp_path / "copy.db") as archive:
        copy = archive.start_run("copy", {}, {})
        copy.add_cases(ROWS)
        alone = Reviews(copy, CODEBOOK, 307, timedelta(minutes=10))
        two = Reviews(copy, CODEBOOK, 307, timedelta(minutes=10), people=2)
        tasks = json.loads((tmp_path / "all.json").read_text())
        codes = {
            one["data"]["case"]: {
                answer["model_version"]: fields(answer).get("decision")
                for answer in one["predictions"]
            }
            for one in tasks
        }
        assert codes["unconfirmed"].keys() == {"alpha", "beta", "delta"}
        assert codes["accepted"] == dict.fromkeys(("alpha", "beta", "final"), f"OPT=Ctl{FIELDS}")
        for those, part in ((alone, tasks[:4]), (two, tasks[4:])):
            file = file_of(tmp_path, *part)
            assert [import_tasks(file, those).new for _ in range(2)] == [5, 0]
        changes = {"decided": decisions(run)[0].decided}
        first, second = ({case: [] for case in SCRIPTS} for _ in range(2))
        for made, archived in ((first, run), (second, copy)):
            for one in decisions(archived):
                made[one.case].append(one.model_copy(update=changes))
        assert first == second
        assert [row.status for row in run.cases()] == [row.status for row in copy.cases()]
