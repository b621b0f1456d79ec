"""Outcomes made by hand and at random, for the tests of what is counted over them."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from raylab.label.codebooks.codebook import Codebook, Label, compare
from raylab.label.input.cases import read_cases
from raylab.label.opt.code import parse
from raylab.label.opt.codebook import opt_codebook
from raylab.label.protocol.outcome import (
    ANNOTATORS,
    Adjudication,
    Annotator,
    Answer,
    Call,
    Classification,
    Evaluation,
    HumanDecision,
    Outcome,
    Status,
    Verdict,
)
from raylab.label.statistics.frame import Tables, tabulate
from tests.label.protocol.chats import replied

CODEBOOK = opt_codebook()
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PACKAGED = {
    name: [case for file in files for case in read_cases(file, CODEBOOK)]
    for name, files in CODEBOOK.case_sets.items()
}
"""The packaged cases by the name of their set."""
CODES = ("Lrn", "Evo", "Sym", "Evo/Lrn", "Lrn+Sch", "Lrn+Evo", "Ctl", "Swm")


def call(stage: str = "classify-a", **changes: Any) -> Call:
    """A call; the keys of its reply are changed like its own."""
    own: dict[str, Any] = {
        "model": "m",
        "prompt": "classify_maximal@1",
        "prompt_hash": "h",
        "seed": 1,
    }
    own |= {key: changes.pop(key) for key in own.keys() & changes.keys()}
    return Call(stage=stage, reply=replied("", **{"response_model": "m-1", **changes}), **own)


def answer(code: str | None, calls: Sequence[Call] | None = None, **changes: Any) -> Classification:
    """A classification by composition, such as Evo/Lrn; None is one that cannot be read."""
    form = "unparsable" if code is None else "strict"
    defaults: dict[str, Any] = {"rationale": "since", "format": form}
    return Classification(
        label=None if code is None else parse(code),
        calls=(call(),) if calls is None else tuple(calls),
        **(defaults | changes),
    )


def report(
    verdict: str = "PASS", score: int = 90, issues: Iterable[str] = (), **changes: Any
) -> Evaluation:
    defaults: dict[str, Any] = {
        "raw_verdict": Verdict(verdict),
        "raw_score": score,
        "summary": "",
        "contradictory": False,
        "acceptable": verdict != "FAIL" and score >= 70,
        "calls": (call("evaluate-a", prompt="evaluate@1"),),
    }
    return Evaluation(
        verdict=Verdict(verdict), score=score, issues=tuple(issues), **(defaults | changes)
    )


def unread() -> Evaluation:
    """The evaluation of an answer without a code."""
    caps = ("no code could be read, it is empty: 0",)
    return report("FAIL", 0, ("format",), raw_verdict=None, caps=caps, calls=())


def outcome(
    case: str,
    *said: str | Classification | None,
    gold: str | None = None,
    code: str | None = None,
    status: Status = Status.ACCEPTED,
    **changes: Any,
) -> Outcome:
    """A case whose annotators gave these compositions; accepted cases have the code of A.

    The evaluator passes every answer but those for which `evaluation_a` and so on are given.
    """
    answers: dict[Annotator, Answer] = {}
    for name, each in zip(ANNOTATORS, said, strict=False):
        evaluation = changes.pop(f"evaluation_{name.lower()}", report())
        if each is not None:
            classification = answer(each) if isinstance(each, str) else each
            answers[name] = Answer(classification=classification, evaluation=evaluation)
    labels = {name: label for name, each in answers.items() if (label := each.classification.label)}
    agreements = {
        f"{a}{b}": compare(labels[a], labels[b], CODEBOOK.distance)
        for a, b in combinations(labels, 2)
    }
    label = None if code is None else parse(code)
    values: dict[str, Any] = {
        "description_hash": f"subject of {case}",
        "generation": "published",
        "trap": False,
        "meta": {},
        "reason": None,
        "path": ("accept",),
        "gold": gold,
        "gold_label": None if gold is None else parse(gold),
        "label": next(iter(labels.values()), None)
        if status is Status.ACCEPTED and label is None
        else label,
        "answers": answers,
        "agreements": agreements,
        "started": NOON,
        "finished": NOON + timedelta(seconds=4),
    }
    return Outcome(case=case, status=status, **(values | changes))


def adjudication(
    order: Sequence[Annotator],
    choice: str,
    code: str = "Lrn",
    confirmation: Evaluation | None = None,
) -> Adjudication:
    return Adjudication(
        order=tuple(order),
        choice=choice,
        classification=answer(code, [call("adjudicate", prompt="adjudicate@1")]),
        confirmation=confirmation,
    )


def decision(
    case: str, code: str | None, confirmed: bool | None = True, **changes: Any
) -> HumanDecision:
    confirmations = {True: report(), False: report("FAIL", 20), None: None}
    defaults: dict[str, Any] = {
        "choice": "own",
        "label": None if code is None else parse(code),
        "justification": "",
        "reviewer": "R",
        "confirmation": confirmations[confirmed],
        "decided": NOON,
    }
    return HumanDecision(case=case, **(defaults | changes))


def tables(
    cases: Iterable[Outcome],
    *decisions: HumanDecision,
    codebook: Codebook = CODEBOOK,
    annotators: int = 2,
) -> Tables:
    """The tables of a run of so many annotators with these cases and decisions."""
    latest = {each.case: each for each in decisions}

    def label(case: Outcome) -> Label | None:
        last = latest.get(case.case)
        if last is None:
            return case.label
        accepted = last.insisted or (last.confirmation and last.confirmation.acceptable)
        return last.label if accepted else None

    labelled = ((case, label(case)) for case in cases)
    return tabulate(labelled, codebook, ANNOTATORS[:annotators])


def _classifications() -> st.SearchStrategy[Classification | None]:
    def give(code: str | None, cached: bool, repaired: bool) -> Classification:
        calls = [call(cached=cached)]
        if code is None or not repaired:
            return answer(code, calls)
        return answer(code, calls, format="repaired", repairs=("label: x",))

    codes = st.sampled_from([*CODES, None])
    return st.none() | st.builds(give, codes, st.booleans(), st.booleans())


def _evaluations() -> st.SearchStrategy[Evaluation]:
    issues = st.sets(st.sampled_from([each.name for each in CODEBOOK.criteria]))
    verdicts = st.sampled_from([verdict.value for verdict in Verdict])
    judged = st.builds(report, verdicts, st.integers(0, 100), issues, contradictory=st.booleans())
    return st.one_of(judged, st.builds(unread))


@st.composite
def outcomes(draw: st.DrawFn) -> list[Outcome]:
    """Up to 25 outcomes that hold anything the types allow, whether a run would make it or not."""
    codes, reports = st.sampled_from([*CODES, None]), st.none() | _evaluations()
    settled = st.builds(
        adjudication,
        st.sampled_from([("A", "B"), ("B", "A")]),
        st.sampled_from(["A", "B", "synthesis"]),
        st.sampled_from(CODES),
        reports,
    )
    return [
        outcome(
            f"case-{number}",
            draw(_classifications()),
            draw(_classifications()),
            gold=draw(codes),
            status=draw(st.sampled_from([Status.ADJUDICATED, Status.HUMAN, Status.FAILED])),
            generation=draw(st.sampled_from(["published", "other"])),
            trap=draw(st.booleans()),
            meta=draw(st.sampled_from([{}, {"bait": ["Swm"]}])),
            code=draw(codes),
            evaluation_a=draw(reports),
            evaluation_b=draw(reports),
            adjudication=draw(st.none() | settled),
        )
        for number in range(draw(st.integers(0, 25)))
    ]
