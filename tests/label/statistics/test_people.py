"""Agreement of people, and the alternative annotator test against a twin and a simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from raylab.label.codebooks.codebook import Label
from raylab.label.codebooks.distances import FieldDistance, equal_sets
from raylab.label.judgement import Decision
from raylab.label.opt.code import parse
from raylab.label.protocol.decisions import decision_row, read_standings
from raylab.label.protocol.outcome import HumanDecision
from raylab.label.statistics.people import people_report, substitute_report
from tests.label.protocol.outcomes import CODEBOOK, decision

EVO, SCH, LRN, CTL = (parse(code) for code in ("Evo", "Sch", "Lrn", "Ctl"))
LABELS = (EVO, SCH, LRN, CTL)
Case = tuple[Mapping[str, Label], Label | None]
DISTANCE = FieldDistance("nominal", equal_sets)
GRADES = FieldDistance("interval", lambda a, b: abs(int(min(a)) - int(min(b))) / 6)


def test_too_few_people_are_told() -> None:
    report = substitute_report([({"ada": EVO, "bo": EVO}, EVO)] * 40, DISTANCE, 0.15, seed=1)
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


def twin(cases: list[Case], epsilon: float) -> tuple[float, float]:
    """The winning rate and advantage, written from the paper, for any number of people a case."""
    names = {name for judged, _ in cases for name in judged}
    p_values, advantages = [], []
    for name in names:
        model_wins, person_wins = [], []
        for judged, code in cases:
            if name not in judged:
                continue
            rest = [label for other, label in judged.items() if other != name]

            def score(label: Label, rest: list[Label] = rest) -> float:
                distance = CODEBOOK.distance
                return sum(1 - distance(label.categories, one.categories) for one in rest)

            assert code is not None
            model_wins.append(score(code) >= score(judged[name]) - 1e-12)
            person_wins.append(score(judged[name]) >= score(code) - 1e-12)
        differences = np.array(person_wins, float) - np.array(model_wins, float)
        error = differences.std(ddof=1) / np.sqrt(len(differences))
        t = (differences.mean() - epsilon) / error
        p_values.append(stats.t.cdf(t, len(differences) - 1))
        advantages.append(np.mean(model_wins))
    harmonic = sum(1 / rank for rank in range(1, len(names) + 1))
    fallen = 0
    for rank, value in enumerate(sorted(p_values), 1):
        if value <= rank / len(names) * 0.05 / harmonic:
            fallen = rank
    return fallen / len(names), float(np.mean(advantages))


def test_any_number_of_people_a_case_as_a_twin_computes_it() -> None:
    rates = set[float]()
    for seed in range(20):
        dice = np.random.default_rng(seed)
        cases: list[Case] = []
        for _ in range(150):
            truth = LABELS[dice.integers(4)]
            said = [truth if dice.random() < 0.8 else LABELS[dice.integers(4)] for _ in range(5)]
            judges = dice.permutation(4)[: dice.integers(2, 5)]
            cases.append(({f"p{judge}": said[judge] for judge in judges}, said[4]))
        report = substitute_report(cases, CODEBOOK.distance, 0.1, seed)
        assert (report.winning_rate, report.advantage.value) == pytest.approx(twin(cases, 0.1))
        rates.add(report.winning_rate or 0.0)
    assert len(rates) > 2


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
        ({str(at): named(one) for at, one in enumerate(people) if one != "."}, named(model))
        for *people, model in zip(*said, strict=True)
    ]
    report = substitute_report(cases, distance, epsilon, seed=1)
    assert report.winning_rate == pytest.approx(rate)
    assert report.advantage.value == pytest.approx(advantage)


RIGHT, SIMULATED = 0.9, 60
"""How often a person gives one of four labels rightly; simulated audits."""


def simulate(model: float, seed: int) -> list[Case]:
    """Sixty cases of each pair of three people, and a model that is right so often."""
    dice = np.random.default_rng(seed)

    def say(truth: int, right: float) -> Label:
        wrong = (truth + int(dice.integers(1, 4))) % 4
        return LABELS[truth if dice.random() < right else wrong]

    return [
        ({name: say(truth, RIGHT) for name in pair}, say(truth, model))
        for pair in combinations("abc", 2)
        for truth in dice.integers(0, 4, 60).tolist()
    ]


def agreeing(right: float) -> float:
    """The chance that somebody who is right so often agrees with a person."""
    return right * RIGHT + (1 - right) * (1 - RIGHT) / 3


def test_the_test_errs_as_seldom_as_it_says_and_its_interval_holds_the_truth() -> None:
    # A person's advantage is the difference of the chances to agree with the other. With a model
    # that is right in 0.7269 of the cases it is just epsilon, so that a win is an error.
    epsilon = 0.15
    slope = RIGHT - (1 - RIGHT) / 3
    poor = (agreeing(RIGHT) - epsilon - (1 - RIGHT) / 3) / slope
    assert agreeing(RIGHT) - agreeing(poor) == pytest.approx(epsilon)
    # The person alone agrees with another who is right, or with one who is wrong.
    alone = RIGHT**2 * (1 - poor) + (1 - RIGHT) ** 2 / 3 * (1 - (1 - poor) / 3)
    errors, holds, passes = 0, 0, 0
    for seed in range(SIMULATED):
        report = substitute_report(simulate(poor, seed), DISTANCE, epsilon, seed)
        errors += bool(report.winning_rate)
        assert report.advantage.interval is not None
        low, high = report.advantage.interval
        holds += low <= 1 - alone <= high
        passes += bool(substitute_report(simulate(RIGHT, seed), DISTANCE, epsilon, seed).passes)
    # Three standard errors of a share of 0.05 of 60 are 0.084.
    assert errors / SIMULATED <= 0.134 and holds / SIMULATED >= 0.866
    # A model as good as people passes.
    assert passes / SIMULATED >= 0.95


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
