"""Changes of annotators over time: runs of one archive compared on a fixed set of canaries.

A run is compared with the previous run that asked the same model in the same role, on the canaries
that both answered. The two-proportion test (see `compare_proportions`) treats the two runs as
independent samples. Since the cases are the same, McNemar's exact test, which uses only the cases
that changed, is also given and finds smaller changes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from scipy import stats

from raylab.annotation.statistics.canaries import (
    MEASURES,
    CanaryMeasure,
    DriftRun,
    RunCounts,
)
from raylab.annotation.statistics.estimates import Difference, compare_proportions
from raylab.runs.records import Part, Record

LEVEL = 0.05
POWER = 0.8


class DriftTest(Part):
    """A test of the hypothesis that a measure did not change."""

    p_value: float
    holm: float
    """The p-value corrected for all measures of the run by Holm's method (1979)."""
    flagged: bool
    """The corrected p-value is at most the level."""


class DriftTests(Part):
    """The tests of one measure."""

    two_proportion: DriftTest
    """Fisher's exact test, which treats the two runs as independent samples."""
    mcnemar: DriftTest
    """McNemar's exact test, which uses only the cases that changed."""

    @property
    def flags(self) -> list[str]:
        """The names of the tests that flag a change."""
        named = {"two_proportion": self.two_proportion, "mcnemar": self.mcnemar}
        return [name for name, test in named.items() if test.flagged]


class Detectable(Part):
    """The nearest shares that the two-proportion test would tell from the earlier share.

    They are for the power of the comparison, at the strictest level of Holm's method.
    """

    drop: float | None
    """None if no share is low enough."""
    rise: float | None
    """None if no share is high enough."""


class CanaryResult(Part):
    """A change on the canaries that both runs answered."""

    right_before: int
    """Canaries that were right, passed, or the same in the earlier run."""
    right_after: int
    lost: int
    """Canaries that were right only in the earlier run."""
    gained: int
    """Canaries that were right only in the later run."""
    difference: Difference
    """Difference of the shares, later minus earlier."""
    tests: DriftTests
    detectable: Detectable


class CanaryChange(Part):
    """A measure of a run against the earlier run of the same models."""

    measure: str
    """`roots`, the right set; `pass_rate`; or `exact`, the same composition."""
    side: str
    models: tuple[str, ...]
    before: str
    """Name of the earlier run."""
    after: str
    """Name of the later run."""
    changed: tuple[str, ...]
    """Names of other facts that changed."""
    cases: int
    """Canaries that both runs answered."""
    result: CanaryResult | None
    """None without such cases."""
    reason: str | None
    """The reason why nothing could be compared."""

    @property
    def label(self) -> str:
        """The measure and side in words."""
        return CanaryMeasure(self.measure, self.side).label


class Drift(Record):
    """The runs of an archive over time, each compared with an earlier one."""

    file: ClassVar[str] = "drift.json"

    level: float
    """Chance of a false flag for a run in which nothing changed."""
    power: float
    """Power at which a change counts as detectable."""
    runs: tuple[DriftRun, ...]
    """The earliest first."""
    comparisons: tuple[CanaryChange, ...]
    """Comparisons of each run after the first."""
    alarms: tuple[str, ...]
    """A sentence for each flagged measure."""


def compare_runs(
    runs: Iterable[RunCounts], *, level: float = LEVEL, power: float = POWER, seed: int = 307
) -> Drift:
    """Compares runs over time.

    Flags keep `level` for a run as a whole: the p-values of all measures of a run are corrected by
    Holm's method, separately for each of the two tests. The family is one run, so that later runs
    do not change the results of earlier ones.

    Args:
        runs: In any order.
        level: Chance of a false flag for a run in which nothing changed, in (0, 1).
        power: Power at which a change counts as detectable, in (0, 1).
        seed: Seed of the bootstrap intervals.
    """
    ordered = sorted(runs, key=lambda run: (run.started, run.name))
    comparisons = [
        change
        for place in range(1, len(ordered))
        for change in _changes(list(_pairs(ordered, place)), level, power)
    ]
    return Drift(
        level=level,
        power=power,
        runs=tuple(run.summary(seed) for run in ordered),
        comparisons=tuple(comparisons),
        alarms=tuple(alarm for change in comparisons for alarm in _alarms(change)),
    )


@dataclass(frozen=True)
class _Pair:
    """A measure in two runs of the same models."""

    measure: CanaryMeasure
    before: RunCounts
    after: RunCounts

    @cached_property
    def common(self) -> "_Common":
        before, after = (run.results[self.measure] for run in (self.before, self.after))
        pairs = Counter((before[key], after[key]) for key in before.keys() & after.keys())
        both, lost, gained = pairs[True, True], pairs[True, False], pairs[False, True]
        return _Common(pairs.total(), both + lost, both + gained, lost, gained)

    @property
    def changed(self) -> tuple[str, ...]:
        before, after = (run.facts(self.measure) for run in (self.before, self.after))
        return tuple(name for name, fact in after.items() if fact != before[name])

    @property
    def why_nothing(self) -> str:
        for run in (self.after, self.before):
            if not run.results[self.measure] and run.cached[self.measure]:
                return f"the journal answered for {run.name}: annotate with fresh=true to ask anew"
            if not run.results[self.measure]:
                return f"{run.name} has no result on a canary"
        return "no canary was answered in both"


@dataclass(frozen=True)
class _Common:
    """Counts of the cases that both runs answered, and of those that were right."""

    cases: int
    before: int
    after: int
    lost: int
    gained: int

    @property
    def difference(self) -> Difference:
        return compare_proportions((self.after, self.cases), (self.before, self.cases))

    @property
    def fisher(self) -> float:
        """The exact two-sided p-value of equal shares."""
        p_value = self.difference.p_value
        assert p_value is not None
        return p_value

    @property
    def mcnemar(self) -> float:
        """The exact two-sided p-value of equally many lost and gained; 1 if nothing changed."""
        changed = self.lost + self.gained
        return float(stats.binomtest(self.lost, changed).pvalue) if changed else 1.0

    def detectable(self, level: float, power: float) -> Detectable:
        """Returns the detectable shares by Cohen's effect size h (1988)."""
        h = float(stats.norm.isf(level / 2) + stats.norm.ppf(power)) * math.sqrt(2 / self.cases)
        angle = 2 * math.asin(math.sqrt(self.before / self.cases))
        low, high = angle - h, angle + h
        return Detectable(
            drop=math.sin(low / 2) ** 2 if low >= 0 else None,
            rise=math.sin(high / 2) ** 2 if high <= math.pi else None,
        )


def _pairs(ordered: Sequence[RunCounts], place: int) -> Iterator[_Pair]:
    """Yields each measure of one run, paired with the earlier run to compare with."""
    after = ordered[place]
    for measure in MEASURES:
        asked = after.asked(measure)
        if asked is None:
            continue
        earlier = [run for run in ordered[:place] if run.asked(measure) == asked]
        with_results = [run for run in earlier if run.results[measure]]
        before = (with_results or earlier or [None])[-1]
        if before is not None:
            yield _Pair(measure, before, after)


def _changes(pairs: Sequence[_Pair], level: float, power: float) -> Iterator[CanaryChange]:
    """Yields the comparisons of one run, which form a family of tests."""
    results = dict(_family([pair.common for pair in pairs], level, power))
    for place, pair in enumerate(pairs):
        result = results.get(place)
        yield CanaryChange(
            measure=pair.measure.name,
            side=pair.measure.side,
            models=pair.after.asked(pair.measure) or (),
            before=pair.before.name,
            after=pair.after.name,
            changed=pair.changed,
            cases=pair.common.cases,
            result=result,
            reason=pair.why_nothing if result is None else None,
        )


def _family(
    results: Sequence[_Common], level: float, power: float
) -> Iterator[tuple[int, CanaryResult]]:
    """Yields the results with cases by their place, tested as one family."""
    tested = {place: common for place, common in enumerate(results) if common.cases}
    fisher = _corrected({place: common.fisher for place, common in tested.items()}, level)
    mcnemar = _corrected({place: common.mcnemar for place, common in tested.items()}, level)
    for place, common in tested.items():
        yield (
            place,
            CanaryResult(
                right_before=common.before,
                right_after=common.after,
                lost=common.lost,
                gained=common.gained,
                difference=common.difference,
                tests=DriftTests(two_proportion=fisher[place], mcnemar=mcnemar[place]),
                detectable=common.detectable(level / len(tested), power),
            ),
        )


def _corrected(p_values: Mapping[int, float], level: float) -> dict[int, DriftTest]:
    """Returns the tests of one family with Holm's correction (1979)."""
    found: dict[int, DriftTest] = {}
    highest = 0.0
    for rank, place in enumerate(sorted(p_values, key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = DriftTest(p_value=p_values[place], holm=highest, flagged=highest <= level)
    return found


def _alarms(change: CanaryChange) -> Iterator[str]:
    result = change.result
    if result is not None and (flags := result.tests.flags):
        why = f"; changed as well: {', '.join(change.changed)}" if change.changed else ""
        yield (
            f"{change.label} ({', '.join(change.models)}): "
            f"{result.right_before} of {change.cases} canaries in {change.before}, "
            f"{result.right_after} in {change.after} ({', '.join(flags)}){why}"
        )
