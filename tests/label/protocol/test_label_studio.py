"""Cases as tasks of Label Studio, and people's annotations back."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from raylab.core.errors import DataError, RunError
from raylab.label.archive.records import AUDIT, DECISION, HUMAN, CaseRow
from raylab.label.archive.run import RunArchive
from raylab.label.archive.store import Archive
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import CodebookConfig
from raylab.label.input.cases import Case
from raylab.label.opt.code import parse
from raylab.label.protocol.label_studio import (
    Import,
    archived_task,
    import_tasks,
    write_tasks,
    write_waiting,
)
from raylab.label.protocol.outcome import HumanDecision, Status, read_decision
from raylab.label.protocol.protocol import draw_order
from raylab.label.protocol.reviews import Reviews, Typed, draw_audit
from tests.label.protocol import chats
from tests.label.protocol.chats import BAD, CASE, DISPUTED, FIELDS
from tests.label.protocol.outcomes import CODEBOOK, answer, outcome
from tests.label.protocol.studio import annotation, task

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
    written = write_waiting(file, reviews, kind)
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
        "case-2": annotation(decision=" Evo/Lrn ", justification=WHY),
        "case-3": annotation(decision=taken, justification=WHY, insist="true"),
        "unparsed": annotation(decision="unclear", justification=WHY),
        "unconfirmed": annotation(decision="A") | {"was_cancelled": True},
    }
    # A choice says the same as a text.
    said["unparsed"]["result"][0] |= {"type": "choices", "value": {"choices": ["unclear"]}}
    file = file_of(tmp_path, *(one | {"annotations": [said[name]]} for name, one in tasks.items()))
    assert import_tasks(file, reviews, "Di") == Import(5, 5, 3, ())
    made = {one.case: one for one in decisions(run)}
    side = tasks["case-3"]["predictions"][0]["model_version"]
    shown = {name: (one.choice, one.insisted, one.reviewer) for name, one in made.items()}
    assert shown == {
        "case-0": ("A", False, "Ada"),
        "case-1": ("B", False, "bo@lab.example"),
        "case-2": ("own", False, "Di"),
        "case-3": (side, True, "Di"),
        "unparsed": ("unclear", False, "Di"),
    }
    assert str(made["case-2"].label) == "OPT=Evo/Lrn" and str(made["case-3"].label) == taken
    assert {one.justification for one in made.values()} == {WHY}
    assert run.counts(now=True) == {"unconfirmed": 3, "accepted": 2, "unclear": 1, "human": 1}
    # A file that is imported again says nothing new, and nobody overrules somebody else.
    assert import_tasks(file, reviews, "Di") == Import(5, 0, 0, ())
    said["case-0"] = annotation(decision="B", justification=WHY, reviewer="Bo")
    done = import_tasks(file_of(tmp_path, task("case-0", said["case-0"])), reviews)
    assert (done.new, done.left_out) == (0, ("case case-0 is decided by Ada",))
    assert exported(tmp_path, reviews).keys() == {"unconfirmed"}


def test_a_label_may_have_the_name_of_an_annotator(tmp_path: Path, run: RunArchive) -> None:
    labels = {name: {"definition": f"Answer {name}."} for name in "BCD"}
    config = {"name": "choices", "task": "Choose.", "labels": labels}
    book = make_codebook(CodebookConfig.model_validate(config))
    read = answer(None).model_copy(update={"label": book.read("B"), "format": "strict"})
    said = {"one": "B", "two": "C", "three": "a"}
    for name in said:
        case = outcome(
            name, read, answer(None), answer(None), status=Status.HUMAN, path=("human:unparsable",)
        )
        body = case.model_dump(mode="json")
        run.add_cases([CaseRow(name, f"hash of {name}", f"Question {name}.", HUMAN, body)])
    reviews = Reviews(run, book, 307, timedelta(minutes=10))
    tasks = (
        task(name, annotation(decision=line, justification=WHY, reviewer="Ada"))
        for name, line in said.items()
    )
    assert import_tasks(file_of(tmp_path, *tasks), reviews).new == 3
    made = [read_decision(row.body, book) for row in run.decisions()]
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
    ({"data": {}}, "missing required field `case` - at `$.data`"),
    (wrong(justification=" "), "case case-0: Say why"),
    (wrong(reviewer=""), "name has 1 to 60 letters"),
    (wrong(decision=""), "has a justification and no decision"),
    (wrong(decision="C"), "'C' is none of A, B, unclear, undo"),
    (wrong(decision="The answer is OPT=Evo"), "is none of A, B"),
    (wrong(about={"description": "another"}), "is not the one that was classified"),
    (wrong("accepted"), "case accepted is accepted, no person was asked"),
    (wrong("unparsed", decision="B"), "B has no code"),
    (wrong("case-1"), "has an earlier task already"),
    ({"data": {"case": "case-2"}, "annotations": 3}, "Expected `array`, got `int` - at `$.annot"),
    (3, "Expected `object`, got `int`"),
]


def test_tasks_that_cannot_be_used_are_named_and_none_is_taken(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    file = file_of(tmp_path, wrong("case-1"), *(one for one, _ in PROBLEMS))
    with pytest.raises(DataError, match="so none was imported; mend them") as caught:
        import_tasks(file, reviews)
    # A case is known by its first task, whatever is wrong with that.
    problems = [problem for _, problem in PROBLEMS]
    _, *told = str(caught.value).split("\n  task ")
    texts = {int(text.split(":")[0]) - 2: text for text in told}
    for number, problem in enumerate(problems):
        case = "has an earlier task already"
        assert problem in texts[number] or case in texts[number], (problem, texts)
    assert decisions(run) == []
    with pytest.raises(DataError, match=r"and 10 more"):
        import_tasks(file_of(tmp_path, *["3"] * 60), reviews)
    with pytest.raises(DataError, match=r"gone\.json cannot be read.*export="):
        import_tasks(tmp_path / "gone.json", reviews)
    for content, problem in (("{}", "not a list of tasks"), ("[{", "not JSON")):
        file.write_text(content)
        with pytest.raises(DataError, match=problem):
            import_tasks(file, reviews)
    # An editor may leave its marks.
    file.write_text(json.dumps([wrong()], indent=2), encoding="utf-8-sig")
    assert import_tasks(file, reviews).new == 1


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
    assert import_tasks(file, reviews) == Import(1, 1, 0, ())
    assert import_tasks(file, reviews) == Import(1, 0, 0, ())
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
    assert (done.read, done.new, done.unconfirmed) == (6, 5, 1)
    assert done.left_out == ("you have judged case case-2: it waits for somebody else",)
    assert import_tasks(file, reviews).new == 0
    # What differs goes out with both judgements, for a third.
    (shown,) = (one for one in exported(tmp_path, reviews).values() if one["predictions"])
    assert shown["data"]["case"] == "case-1"
    judged = [one for one in shown["predictions"] if "judgement" in one["model_version"]]
    assert [fields(one)["decision"] for one in judged] == ["OPT=Evo", "OPT=Sch"]


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
        those.submit(case, name, Typed(**said))
    reviews.undo(3, "Ada")
    with (tmp_path / "all.json").open("wb") as file:
        write_tasks((archived_task(one, CODEBOOK) for one in run.cases()), file)
    with Archive.open(tmp_path / "copy.db") as archive:
        copy = archive.start_run("copy", {}, {})
        copy.add_cases(ROWS)
        alone = Reviews(copy, CODEBOOK, 307, timedelta(minutes=10))
        two = Reviews(copy, CODEBOOK, 307, timedelta(minutes=10), people=2)
        tasks = json.loads((tmp_path / "all.json").read_text())
        for those, part in ((alone, tasks[:4]), (two, tasks[4:])):
            done = import_tasks(file_of(tmp_path, *part), those)
            assert (done.new, done.left_out) == (5, ())
        changes = {"decided": decisions(run)[0].decided}
        first, second = ({case: [] for case in SCRIPTS} for _ in range(2))
        for made, archived in ((first, run), (second, copy)):
            for one in decisions(archived):
                made[one.case].append(one.model_copy(update=changes))
        assert first == second
        assert [row.status for row in run.cases()] == [row.status for row in copy.cases()]
