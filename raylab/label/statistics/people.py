"""Independent judgements of people: how far they agree, and whether models may stand in for them.

The second is the alternative annotator test of Calderon, Reichart and Dror (ACL 2025, arXiv
2501.10970). It leaves out each person in turn and asks who is nearer to the others in each case,
the model or the person: by the mean distance of the codebook, and on an interval scale by the root
of the mean square, as in the paper. A model wins against a person if the person's share of cases in
which it is at least as near exceeds the model's by less than epsilon, by a one-sided t test with
the correction of Benjamini and Yekutieli.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from scipy import stats

from raylab.core.runs.records import Figure, Measure, Part
from raylab.core.stats import DRAWS, PRIOR, interval_of, proportion
from raylab.label.codebooks.codebook import INTERVAL, Label, SetDistance
from raylab.label.judgement import Standing, person
from raylab.label.protocol.decisions import ReadDecision
from raylab.label.statistics.agreement import krippendorff_alpha

MIN_PEOPLE, MIN_JUDGED = 3, 30
"""People, and cases of each, below which the paper advises against the test."""
FALSE_DISCOVERIES = 0.05
PASSING_RATE = 0.5
NEAR = 1e-9

Judged = Mapping[str, Label]
"""The label that each person gave a case."""


class SubstituteReport(Part):
    """The alternative annotator test of one giver of codes."""

    cases: Annotated[int, Measure("cases with two people's codes", "count", None)]
    people: Annotated[int, Measure(f"people with {MIN_JUDGED} cases or more", "count")]
    winning_rate: Annotated[float | None, Measure("winning rate", "number")]
    """Share of these people against whom it wins: with 0.5 or more it may stand in for people."""
    advantage: Annotated[Figure, Measure("average advantage probability")]
    """Chance that it is at least as near to the other people as the person who is left out."""
    reason: str | None
    """The reason why there is no winning rate."""

    @property
    def passes(self) -> bool | None:
        """Returns whether it may stand in for people; None if that cannot be said."""
        return None if self.winning_rate is None else self.winning_rate >= PASSING_RATE


class PeopleReport(Part):
    """The independent judgements of people on the cases of a queue, by the text alone."""

    once: Annotated[int, Measure("cases with one judgement", "count", None)]
    twice: Annotated[int, Measure("cases with two", "count", None)]
    settled: Annotated[int, Measure("settled by a third person", "count", None)]
    waiting: Annotated[int, Measure("waiting for a third person", "count", None)]
    equal: Annotated[Figure, Measure("equal judgements")]
    """Both people give the same composition, or both find no code right."""
    alpha: Annotated[Figure, Measure("Krippendorff's alpha", "number")]
    """Agreement beyond chance, by the distance of the codebook, where both people give a code."""
    people: Annotated[dict[str, int], Measure("judged by", "count", None)]
    """Judgements by reviewer."""


def people_report(
    cases: Sequence[Standing[ReadDecision]], distance: SetDistance, seed: int
) -> PeopleReport:
    """Returns the figures of the judgements on the cases of a queue."""
    judged = [(case, [each.said for each in case.judgements.values()]) for case in cases]
    pairs = [(case, *said[:2]) for case, said in judged if len(said) > 1]
    equal = [first.agrees_with(second) for _, first, second in pairs]
    sets = Counter(tuple(said.label and said.label.measured for said in both) for _, *both in pairs)
    differing = [case for (case, *_), same in zip(pairs, equal, strict=True) if not same]
    reviewers = [said.reviewer for _, every in judged for said in every]
    names = {person(reviewer): reviewer for reviewer in reviewers}
    counts = Counter(map(person, reviewers))
    return PeopleReport(
        once=sum(len(said) == 1 for _, said in judged),
        twice=len(pairs),
        settled=sum(not case.waits for case in differing),
        waiting=sum(case.waits for case, *_ in pairs),
        equal=proportion(sum(equal), len(equal)),
        alpha=krippendorff_alpha(sets, distance, seed=seed),
        people={names[key]: count for key, count in counts.most_common()},
    )


def substitute_report(
    cases: Sequence[tuple[Judged, Label | None]], distance: SetDistance, epsilon: float, seed: int
) -> SubstituteReport:
    """Tests whether a model may stand in for people.

    Args:
        cases: People's labels of each case, with the model's; None if it gave none that can be
            read, which is farther from everybody than any label. Cases with one person are left
            out.
        distance: Distance of two sets of categories, in [0, 1].
        epsilon: Advantage of a person that the lower cost of the model makes up for, in [0, 1].
    """
    judged = [case for case in cases if len(case[0]) > 1]
    people = sorted({name for labels, _ in judged for name in labels})
    power = 2 if distance.level == INTERVAL else 1
    # Where the model is as near to the others as a person or nearer, and the reverse: (cases,
    # people), and NaN where a person has not judged a case.
    won = np.full((len(judged), len(people)), np.nan)
    lost = won.copy()
    for place, (labels, code) in enumerate(judged):
        for name, label in labels.items():
            others = [other.measured for key, other in labels.items() if key != name]
            model, human = (
                np.inf
                if own is None
                else np.mean([distance(own.measured, other) ** power for other in others])
                for own in (code, label)
            )
            at = place, people.index(name)
            # Means of equal distances may differ in their last digits.
            won[at], lost[at] = model <= human + NEAR, human <= model + NEAR
    tested = (~np.isnan(won)).sum(0) >= MIN_JUDGED
    won, lost = won[:, tested], lost[:, tested]
    counts: dict[str, int] = {"cases": len(judged), "people": won.shape[1]}
    if won.shape[1] < MIN_PEOPLE:
        reason = (
            f"the test needs {MIN_PEOPLE} people with {MIN_JUDGED} cases or more each, and has "
            f"{won.shape[1]}"
        )
        none = Figure(count=len(judged), reason=reason)
        return SubstituteReport(**counts, winning_rate=None, advantage=none, reason=reason)
    p_values = list[float]()
    for row in (lost - won).T:
        differences = row[~np.isnan(row)]
        # The t test has no value where all differences are the same.
        p_value = float(differences[0] >= epsilon)
        if np.ptp(differences):
            test: Any = stats.ttest_1samp(differences, epsilon, alternative="less")
            p_value = float(test.pvalue)
        p_values.append(p_value)
    wins = stats.false_discovery_control(p_values, method="by") <= FALSE_DISCOVERIES
    # The interval of the advantage is that of a Bayesian bootstrap, which draws cases, not
    # judgements. As for other shares the prior is half a case that the model wins against everybody
    # and half a case that it loses.
    nearer, judges = np.nan_to_num(won), (~np.isnan(won)).astype(float)
    generator, drawn = np.random.default_rng(seed), list[float]()
    for _ in range(DRAWS):
        weights = generator.standard_exponential(len(won))
        win, lose = generator.standard_gamma(PRIOR, 2)
        shares = (weights @ nearer + win) / (weights @ judges + win + lose)
        drawn.append(float(shares.mean()))
    value = float(np.nanmean(won, axis=0).mean())
    advantage = Figure(value=value, interval=interval_of(drawn), count=len(won))
    return SubstituteReport(
        **counts, winning_rate=float(wins.mean()), advantage=advantage, reason=None
    )
