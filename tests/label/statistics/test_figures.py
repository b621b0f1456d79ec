import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raylab.core.runs.records import Figure
from raylab.label.codebooks.codebook import Categories
from raylab.label.opt.code import Root
from raylab.label.protocol.outcome import Annotator, HumanDecision, Outcome, Status, Verdict
from raylab.label.statistics.agreement import set_confusion
from raylab.label.statistics.columns import export_columns
from raylab.label.statistics.report import AnnotationReport, Ending, annotation_report
from raylab.llm.embedded import SMOKE_NOTICE
from tests.label.protocol.outcomes import (
    CODEBOOK,
    adjudication,
    answer,
    call,
    decision,
    outcome,
    outcomes,
    report,
    tables,
    unread,
)
from tests.tables import markdown, read_table

GUIDE = Path(__file__).parents[3] / "jobs/guide/annotate.md"
ROOTS = [root.value for root in Root]
LABELS = (*ROOTS, "none")


def quality(
    cases: Iterable[Outcome], *decisions: HumanDecision, **changes: Any
) -> AnnotationReport:
    run = tables(cases, *decisions)
    figures = annotation_report(run, decisions, **changes)
    written = json.dumps(figures.model_dump(mode="json"), allow_nan=False)
    assert AnnotationReport.model_validate(json.loads(written)) == figures
    return figures


def share(estimate: Figure) -> tuple[int, int | None]:
    """Numerator and denominator of an estimated proportion."""
    return estimate.cases, estimate.count


DOZEN = [
    outcome("1", "Lrn", "Lrn", gold="Lrn"),
    outcome("2", "Lrn", "Lrn", gold="Lrn"),
    outcome("3", "Evo", "Evo", gold="Evo"),
    outcome("4", "Evo/Lrn", "Lrn+Evo", gold="Evo/Lrn", status=Status.ADJUDICATED,
            code="OPT=Evo/Lrn", adjudication=adjudication(("B", "A"), "A", "Evo/Lrn", report())),
    outcome("5", "Lrn", "Sch", gold="Lrn", status=Status.ADJUDICATED, code="OPT=Sch",
            adjudication=adjudication(("B", "A"), "B", "Sch", report("WEAK_PASS", 75))),
    outcome("6", "Evo", "Swm", gold="Lrn", status=Status.HUMAN, path=("human:unconfirmed",),
            reason="the adjudicated code is not acceptable: FAIL 10",
            adjudication=adjudication(("A", "B"), "synthesis", "Ctl", report("FAIL", 10))),
    outcome("7", "Swm", "Sym", gold="Sym", trap=True, meta={"bait": ["Swm"]},
            status=Status.HUMAN, evaluation_a=report("FAIL", 40, ("parallelism/pipelines",)),
            path=("evaluate-a:FAIL:40", "human:one-acceptable"), reason="only B is acceptable"),
    outcome("8", "Sym", "Lrn+Sch", gold="Sym", trap=True, status=Status.HUMAN,
            path=("human:one-acceptable",), reason="only A is acceptable"),
    outcome("9", answer(None), "Lrn", gold="Lrn", status=Status.HUMAN, evaluation_a=unread(),
            path=("human:unparsable",), reason="no code of A could be read: it is empty"),
    outcome("10", answer(None), answer(None), status=Status.HUMAN, evaluation_a=unread(),
            evaluation_b=unread(), path=("human:unparsable",), reason="no code of A could be read"),
    outcome("11", None, "Prb", gold="Prb", status=Status.FAILED, evaluation_b=None,
            path=("failed:classify-a",), reason="annotator A: timeout"),
    outcome("12", "Lrn", "Lrn"),
]  # fmt: skip


def test_endings_of_a_dozen_cases():
    figures = quality(DOZEN)
    cases = figures.cases
    assert (cases.total, cases.with_gold, cases.traps) == (12, 10, 2)
    waiting = Ending(cases=2, example="7: only B is acceptable")
    assert cases.endings["human:one-acceptable"] == waiting
    assert next(iter(cases.endings.items())) == ("accept", Ending(cases=6, example=None))


def test_traps_count_by_the_root_that_they_bait():
    traps = quality(DOZEN).sensitivity
    # A took 7 for Swm, as baited; B took 8 for Sch, which is among the roots of execution.
    for side in "AB":
        assert share(traps[side].taken) == (1, traps[side].answered)
    assert (traps["A"].taken_for, traps["B"].taken_for) == ({"Swm": 1}, {"Sch": 1})
    assert traps["final"].taken.reason == "no cases"
    # Another wrong root than the one baited is not taken.
    each = outcome("t", "Sch", "Swm", gold="Sym", trap=True, meta={"bait": ["Swm"]})
    traps = quality([each]).sensitivity
    assert (share(traps["A"].taken), share(traps["B"].taken)) == ((0, 1), (1, 1))
    # A baited root that gold has too is no mistake.
    each = outcome("t", "Evo/Swm", "Evo", gold="Evo", trap=True)
    assert quality([each]).sensitivity["A"].taken_for == {"Swm": 1}
    assert share(quality([each]).sensitivity["B"].taken) == (0, 1)


def test_people_decide_and_the_latest_decision_holds():
    figures = quality(
        DOZEN,
        decision("6", "Evo", choice="A", confirmed=True),
        decision("6", "Lrn", confirmed=True),
        decision("7", "Sym", choice="B", confirmed=True),
        decision("7", None, None, choice=None),
        decision("8", "Sym", choice="A", confirmed=False),
        decision("9", "Lrn", confirmed=None, reviewer="S"),
    )
    people = figures.decisions
    assert people.cases == 3
    assert (people.confirmed, people.refused, people.unconfirmed) == (1, 1, 1)
    # 6 is decided, 9 waits for the evaluator; 7 was undone, 8 refused, 10 never decided.
    assert people.waiting == 3
    assert people.usage.sent == 4
    assert (figures.gold["final"].cases, share(figures.gold["reviewed"].labels)) == (5, (5, 6))
    # Lrn in 1, 2, 12 and now 6; 3; 4; 5.
    assert [(code, share(each)) for code, each in figures.codes.items()] == [
        ("Lrn", (4, 7)), ("Evo", (1, 7)), ("Evo/Lrn", (1, 7)), ("Sch", (1, 7))
    ]  # fmt: skip
    roots = {root: share(each)[0] for root, each in figures.labels.items()}
    assert roots == {"Lrn": 5, "Evo": 2, "Sym": 0, "Prb": 0, "Sch": 1, "Ctl": 0, "Swm": 0}
    unclear = decision("7", None, None, choice="unclear", justification="two systems in one")
    figures = quality(DOZEN, decision("6", "Lrn", None, insisted=True), unclear)
    people = figures.decisions
    assert (people.cases, people.insisted, people.unclear) == (2, 1, 1)
    assert (people.confirmed, people.refused, people.unconfirmed) == (0, 0, 0)
    # Of 6 to 10, 6 is decided, and 7 waits for nobody: 8, 9 and 10 do.
    assert people.waiting == 3


def test_calls_of_the_journal_cost_nothing_and_missing_prices_are_told():
    a = answer("Lrn", [call(seconds=1.0), call("classify-a-repair", prompt="repair@1")])
    b = answer("Lrn", [call("classify-b", response_model="m-2", cached=True, cost=None)])
    lost = call("adjudicate", cost=0.5)
    each = outcome("1", a, b, unread=(lost,), evaluation_a=None, evaluation_b=None)
    usage = quality([each]).usage
    total = usage.total
    assert (total.sent, total.cached) == (3, 1)
    assert (total.prompt_tokens, total.completion_tokens) == (300, 30)
    assert (total.cost, total.unpriced) == (1.0, 0)
    assert (total.median_seconds, total.slow_seconds) == (2, 2)
    assert [row.role for row in usage.by_source] == [
        "adjudicate", "classify-a", "classify-a-repair", "classify-b"
    ]  # fmt: skip
    cached = usage.by_source[-1]
    assert (cached.sent, cached.cost, cached.median_seconds) == (0, 0.0, None)
    a = answer("Lrn", [call(), call(cost=None)])
    total = quality([outcome("1", a, "Lrn")]).usage.total
    assert (total.cost, total.unpriced, total.priced) == (None, 1, 1.0)
    hundred = [call(seconds=float(n)) for n in range(100, 0, -1)]
    total = quality([outcome("1", answer("Lrn", hundred), None)]).usage.total
    assert (total.median_seconds, total.slow_seconds) == (50, 99)


def test_an_empty_run_has_reasons_in_place_of_numbers():
    figures = quality([])
    assert (figures.cases.total, figures.usage.total.median_seconds) == (0, None)
    written = figures.model_dump_json()
    assert written.count('"value":') == written.count('"value":null,"interval":null') > 50
    assert '"reason":null' not in written
    assert list(figures.confusion) == ["annotators"]


def test_weak_results_are_announced():
    assert quality([]).notices == ()
    proposed = outcome("p", "Lrn", "Lrn", gold="Lrn", meta={"reviewed": False})
    bare = outcome("q", "Lrn", "Lrn", meta={"reviewed": False})
    figures = quality([*DOZEN, proposed, bare], smoke=True, warnings=["both annotators are one"])
    assert (figures.smoke, figures.cases.with_gold, figures.cases.proposed_gold) == (True, 11, 1)
    smoke, notice, warning = figures.notices
    assert (smoke, warning) == (SMOKE_NOTICE, "both annotators are one")
    assert "nobody reviewed (meta.reviewed is false): 1 of 11." in notice


# Against plain computation


@settings(max_examples=8)
@given(outcomes())
def test_figures_are_what_plain_loops_find(cases: list[Outcome]):
    figures = quality(iter(cases))
    for side in "AB":
        _check_annotator(figures, cases, side)
    both = [(a, b) for each in cases if (a := each.labels.get("A")) and (b := each.labels.get("B"))]
    for status, ended in figures.cases.status.items():
        assert share(ended) == (sum(each.status is status for each in cases), len(cases))
    agreement = figures.agreement
    same = sum(a.composition == b.composition for a, b in both)
    assert share(agreement.exact) == (same, len(both))
    labels = sum(a.categories == b.categories for a, b in both)
    assert share(agreement.same_labels) == (labels, agreement.compared) == (labels, len(both))
    if both:
        near = [1 - CODEBOOK.distance(a.measured, b.measured) for a, b in both]
        assert agreement.weighted.value == pytest.approx(statistics.fmean(near))
        sets = [(a.categories, b.categories) for a, b in both]
        jaccards = [len(a & b) / len(a | b) for a, b in sets]
        assert agreement.jaccard.value == pytest.approx(statistics.fmean(jaccards))
    finals = [(each.gold_label, each.label) for each in cases if each.gold_label and each.label]
    right = sum(gold.categories == final.categories for gold, final in finals)
    assert share(figures.gold["final"].labels) == (right, len(finals))
    waiting = sum(each.status is Status.HUMAN and each.label is None for each in cases)
    assert figures.decisions.waiting == waiting
    settled = [each.adjudication for each in cases if each.adjudication]
    chosen = [each for each in settled if each.choice != "synthesis"]
    first, shown = sum(each.choice == each.order[0] for each in chosen), figures.adjudication
    assert (shown.cases, share(shown.first_shown)) == (len(settled), (first, len(chosen)))


def _check_annotator(figures: AnnotationReport, cases: list[Outcome], side: Annotator) -> None:
    own = figures.annotators[side]
    answers = [each for case in cases if (each := case.classification(side)) is not None]
    for form in ("strict", "repaired", "unparsable"):
        count = sum(each.format == form for each in answers)
        assert share(getattr(own, form)) == (count, len(answers))
    reports = [r for case in cases if (r := case.evaluation(side)) is not None]
    passed = sum(r.verdict is not Verdict.FAIL for r in reports)
    assert share(own.pass_rate) == (passed, len(reports))
    assert own.verdicts == {v: sum(r.verdict is v for r in reports) for v in Verdict}
    asked = [r for r in reports if r.raw_verdict is not None]
    for issue, found_share in own.issues.items():
        judged = reports if issue == "format" else asked
        assert share(found_share) == (sum(issue in r.issues for r in judged), len(judged))
    assert share(own.contradictory)[1] == len(asked)
    gold = figures.gold[side]
    scored = [
        (case.gold_label, each.label)
        for case in cases
        if case.gold_label and (each := case.classification(side))
    ]
    for name, value in (("labels", "categories"), ("exact", "composition"), ("primary", "primary")):
        right = sum(a is not None and getattr(g, value) == getattr(a, value) for g, a in scored)
        assert share(getattr(gold, name)) == (right, len(scored))
    for root in Root:
        named = [(root in g.categories, root in (a.categories if a else ())) for g, a in scored]
        hits = sum(g and a for g, a in named)
        assert share(gold.recall[root]) == (hits, sum(g for g, _ in named))
        assert share(gold.precision[root]) == (hits, sum(a for _, a in named))


SETS = st.frozensets(st.sampled_from(list(Root)))


@given(SETS, SETS)
def test_sets_are_matched_as_random_matching_expects(a: Categories, b: Categories):
    figures = set_confusion({(a, b): 1}, ROOTS)
    assert set_confusion({(b, a): 1}, ROOTS) == tuple(zip(*figures, strict=True))
    longest = max(len(a - b), len(b - a))
    assume(longest <= 4)
    rows, columns = ([*rest, *[None] * (longest - len(rest))] for rest in (a - b, b - a))
    expected = Counter[tuple[str | None, str | None]]((root, root) for root in a & b)
    if not a | b:
        expected[None, None] = 1
    matchings = [zip(rows, order, strict=True) for order in itertools.permutations(columns)]
    shares = Counter(itertools.chain.from_iterable(matchings))
    for cell in itertools.product(range(8), repeat=2):
        pair = tuple((*Root, None)[place] for place in cell)
        share = expected[pair] + shares[pair] / len(matchings)
        assert figures[cell[0]][cell[1]] == pytest.approx(share, abs=1e-9)


def test_the_guide_lists_the_columns_of_an_export() -> None:
    rows = [
        (f"`{name}`", column.meaning)
        for name, column in export_columns("A").items()
        if not name.endswith("_adjudicated")
    ]
    assert read_table(GUIDE, "columns").strip() == markdown([("column", "content"), *rows])
