"""Agreement of people, and the alternative annotator test against its published program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from raylab.label.codebooks.codebook import Label
from raylab.label.codebooks.distances import FieldDistance, equal_sets
from raylab.label.judgement import Decision
from raylab.label.opt.code import parse
from raylab.label.protocol.decisions import decision_row, read_standings
from raylab.label.protocol.outcome import HumanDecision
from raylab.label.statistics.people import people_report, substitute_report
from tests.label.protocol.outcomes import CODEBOOK, decision

EVO = parse("Evo")
Case = tuple[Mapping[str, Label], Label | None]
DISTANCE = FieldDistance("nominal", equal_sets)
GRADES = FieldDistance("interval", lambda a, b: abs(int(min(a)) - int(min(b))) / 6)


def test_too_few_people_are_told() -> None:
    two = {"ada": EVO, "bo": EVO}
    # A third one has judged 29 cases.
    cases = [(two, EVO)] * 11 + [({**two, "cy": EVO}, EVO)] * 29
    report = substitute_report(cases, DISTANCE, 0.15, seed=1)
    assert (report.cases, report.people, report.winning_rate, report.passes) == (40, 2, None, None)
    assert report.reason == "the test needs 3 people with 30 cases or more each, and has 2"
    alone = substitute_report([({"ada": EVO}, EVO)] * 100, DISTANCE, 0.15, seed=1)
    assert (alone.cases, alone.people) == (0, 0)


def test_an_answer_that_cannot_be_read_loses_and_perfection_wins() -> None:
    people = [{"ada": EVO, "bo": EVO, "cy": EVO}] * 40
    perfect = substitute_report([(judged, EVO) for judged in people], DISTANCE, 0.1, seed=1)
    assert (perfect.winning_rate, perfect.advantage.value) == (1.0, 1.0)
    assert perfect.advantage.interval is not None and perfect.advantage.interval[0] < 1.0
    unread = substitute_report([(judged, None) for judged in people], DISTANCE, 0.1, seed=1)
    assert (unread.winning_rate, unread.advantage.value) == (0.0, 0.0)


# Judgements of three people and gpt-4o on MT-Bench's 120 pairs of answers, and of six people and
# gemini_pro on the first 60 moles of `lesion`, a character a case (`.`: none). Data and expected
# figures come from the authors' repository and program, github.com/nitaytech/AltTest at 18428b1,
# scored by accuracy, and for `lesion` by the root of the mean square.
MTBENCH = (
    "............ta..tttttt........ttbbbbbbaabt....aaaa..tatb..bbbttt..aaaaaabb..bbtbbttbtaba....ttttbb..aataab..bb....btbbbt",
    "atbbttbbtataaatttt....ttbttatabb....bb..btaatb....aaaatbbbbbbbaaaaaa..aababa..bb....ttaaabbb......btaabaaaba..btab......",
    "abbbaabbtata..bb..ttttttbttttt..bbbb..aa..atttaaaaaa....bb....tbaa..aa..abtatb..bbtt....tttbtaaabbta..ba..batbtbabbbbbbt",
    "bbbbaabbttaaaabbbbaaaaaabbaattbbbbaabbaabbaabbaaaaaaaabbbbbbbbbbaaaaaaaabbaaaabbbbaaaaaabbbbaaaabbbbaaaaaabbbbaabbbbbbaa",
)
LESION = (
    "201411013120122111412113120131211522115211151001212115120130",
    "211522014120132211412115220131221512215122151101412216220132",
    "201411014120132111412113220120210311105221140001212115110021",
    "210321014121122101412113210131211411114221132001222114120122",
    "211521015110141201412015220141211611015221151001322115100132",
    "211521014120122101312113120121211321114221132100222115210021",
    "111311013020230101211113010120202411013121131001212125110121",
)


def named(text: str) -> Label:
    return Label(line=text, written=text, parts=(("", text),), fields={})


@pytest.mark.parametrize(
    ("said", "distance", "epsilon", "rate", "advantage"),
    [
        (MTBENCH, DISTANCE, 0.2, 0.0, 0.7728101478101479),
        (MTBENCH, DISTANCE, 0.25, 2 / 3, 0.7728101478101479),
        (LESION, GRADES, 0.25, 0.0, 0.7222222222222222),
        (LESION, GRADES, 0.3, 1 / 3, 0.7222222222222222),
    ],
)
def test_published_judgements_have_the_figures_of_the_published_program(
    said: Sequence[str], distance: FieldDistance, epsilon: float, rate: float, advantage: float
) -> None:
    cases: list[Case] = [
        ({str(at): named(vote) for at, vote in enumerate(people) if vote != "."}, named(model))
        for *people, model in zip(*said, strict=True)
    ]
    report = substitute_report(cases, distance, epsilon, seed=1)
    assert report.winning_rate == pytest.approx(rate)
    assert report.advantage.value == pytest.approx(advantage)


def test_on_an_interval_scale_far_misses_weigh_more() -> None:
    # Of 1, 5, 5 and 5 the model's 4 is farther in the mean, and nearer by the squares.
    votes = {name: named(grade) for name, grade in zip("abcd", "1555", strict=True)}
    report = substitute_report([(votes, named("4"))] * 30, GRADES, 0.1, seed=1)
    assert report.advantage.value == 1.0


def judgement(name: str, code: str | None, case: str = "c") -> HumanDecision:
    choice = "unclear" if code is None else "own"
    return decision(case, code, None, reviewer=name, choice=choice, independent=True)


def test_the_agreement_of_people_is_counted() -> None:
    pairs = [("Evo", "Evo")] * 12 + [("Sch", "Sch")] * 6 + [("Evo", "Sch")] * 4 + [(None, None)]
    rows = list[Decision]()
    for number, (a, b) in enumerate(pairs):
        rows.append(decision_row(judgement("Ada", a, f"{number}"), decides=False))
        rows.append(decision_row(judgement("Bo", b, f"{number}"), decides=a == b))
        if a != b and number % 2:
            rows.append(decision_row(decision(f"{number}", a, None, reviewer="Cy")))
    rows.append(decision_row(judgement("ada", "Evo"), decides=False))
    archived = (replace(row, sequence=place) for place, row in enumerate(rows, 1))
    report = people_report([*read_standings(archived, CODEBOOK).values()], DISTANCE, seed=1)
    assert (report.once, report.twice, report.settled, report.waiting) == (1, 23, 2, 2)
    assert (report.equal.cases, report.equal.count) == (19, 23)
    # 22 pairs of codes: 28 Evo and 16 Sch, so D_o = 4 / 22 and D_e = 2 * 28 * 16 / (44 * 43).
    assert report.alpha.value == pytest.approx(1 - (4 / 22) / (2 * 28 * 16 / (44 * 43)))
    assert report.people == {"ada": 24, "Bo": 23}
