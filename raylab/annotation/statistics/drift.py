"""Changes of annotators over time: the runs of one archive compared on the cases that they share.

A run is compared with the latest earlier run that asked the same model in the same role and shares
cases with it, equal in id and description, that both answered anew. Fisher's exact test of
two proportions treats the two runs as independent samples. Since the cases are the same,
McNemar's exact test, which uses only the cases that changed, is also given and finds smaller
changes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import pandas as pd
from scipy import stats

from raylab.annotation.outcome import EVALUATOR, SIDES, Side, Verdict
from raylab.annotation.statistics.figures import SourceReport, source_reports
from raylab.annotation.statistics.frame import Frame, Tables
from raylab.runs.measures import measures_of
from raylab.runs.records import Part, Record

LEVEL = 0.05
BOTH = " and ".join(SIDES)
KEY = ["case", "description_hash"]
"""The columns by which runs share a case, so that a reworded case counts as another."""
FACTS = {
    "model": "response_model of {side}",
    "prompt_hash": "prompt of {side}",
    "seed": "seed of {side}",
}
"""Facts of an annotator that may explain a change, by column."""
EVALUATOR_FACTS = {
    "evaluator": f"response_model of {EVALUATOR}",
    "evaluator_prompt_hash": f"prompt of {EVALUATOR}",
}


class DriftMeasure(NamedTuple):
    """A measure of shared cases: one of `SourceReport`, of one side or of both."""

    name: str
    side: str

    @property
    def sides(self) -> tuple[Side, ...]:
        """The annotators whose answers the measure depends on."""
        return tuple(side for side in SIDES if self.side in (side, BOTH))

    @property
    def label(self) -> str:
        """The name and side in words."""
        return f"{measures_of(SourceReport)[self.name].label}, {self.side}"


MEASURES = (
    *(DriftMeasure(name, side) for name in ("roots", "pass_rate") for side in SIDES),
    DriftMeasure("exact", BOTH),
)


class DriftSource(SourceReport):
    """The results of one served model with one prompt, as the annotator of a side."""

    side: Side


class DriftRun(Part):
    """One run in a comparison over time."""

    run: str
    started: str
    """Time in ISO 8601."""
    taxonomy: str | None
    """Version of the taxonomy; None if it is not known."""
    cases: int
    sources: tuple[DriftSource, ...]


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


class DriftResult(Part):
    """A change on the cases that both runs answered anew."""

    right_before: int
    """Cases that were right, passed, or the same in the earlier run."""
    right_after: int
    lost: int
    """Cases that were right only in the earlier run."""
    gained: int
    """Cases that were right only in the later run."""
    tests: DriftTests


class DriftChange(Part):
    """A measure of a run against an earlier run of the same models."""

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
    shared: int
    """Cases that both runs have."""
    recoded: int | None
    """Shared cases to which the annotator of the side gave two codes that differ; None for both."""
    cases: int
    """Shared cases that this measure compares."""
    result: DriftResult | None
    """None without such cases."""
    reason: str | None
    """The reason why nothing could be compared."""

    @property
    def label(self) -> str:
        """The measure and side in words."""
        return DriftMeasure(self.measure, self.side).label


class Drift(Record):
    """The runs of an archive over time, each compared with an earlier one."""

    file: ClassVar[str] = "drift.json"
    version: ClassVar[int] = 2

    level: float
    """Chance of a false flag for a run in which nothing changed."""
    runs: tuple[DriftRun, ...]
    """The earliest first."""
    comparisons: tuple[DriftChange, ...]
    """Comparisons of each run after the first."""
    alarms: tuple[str, ...]
    """A sentence for each flagged measure."""
    notes: tuple[str, ...]
    """A sentence for each run that no earlier one can be compared with."""


@dataclass(frozen=True)
class ArchivedRun:
    """A run of an archive.

    Attributes:
        name: Its name.
        started: Time of its start; runs are compared in this order.
        taxonomy: Version of its taxonomy; None if it is not known.
        read: Reads its outcomes.
        models: Its annotators' models as requested, if that is known without reading outcomes.
    """

    name: str
    started: datetime
    taxonomy: str | None
    read: Callable[[], Tables]
    models: Mapping[Side, str] | None = None

    @cached_property
    def tables(self) -> Tables:
        """Its outcomes, read once."""
        return self.read()

    def asked(self, measure: DriftMeasure) -> tuple[str, ...] | None:
        """Returns the models behind a measure, by which runs match; None if one is missing."""
        models = [self._requested.get(side) for side in measure.sides]
        named = tuple(model for model in models if model is not None)
        return named if len(named) == len(models) else None

    @cached_property
    def _requested(self) -> Mapping[Side, str]:
        if self.models is not None:
            return self.models
        found: dict[Side, str] = {}
        for side in SIDES:
            for model in self.tables.cases[f"requested_{side.lower()}"].dropna()[:1]:
                found[side] = str(model)
        return found

    def summary(self) -> DriftRun:
        """Returns the run in the form of the report."""
        return DriftRun(
            run=self.name,
            started=self.started.isoformat(),
            taxonomy=self.taxonomy,
            cases=len(self.tables.cases),
            sources=tuple(
                DriftSource(side=side, **dict(row))
                for side in SIDES
                for row in source_reports(self.tables, side)
            ),
        )


def compare_runs(runs: Iterable[ArchivedRun], *, level: float = LEVEL) -> Drift:
    """Compares runs over time.

    Flags keep `level` for a run as a whole: the p-values of all measures of a run are corrected by
    Holm's method, separately for each of the two tests. The family is one run, so that later runs
    do not change the results of earlier ones.

    Args:
        runs: In any order.
        level: Chance of a false flag for a run in which nothing changed, in (0, 1).
    """
    ordered = sorted(runs, key=lambda run: (run.started, run.name))
    families = [list(_pairs(ordered, place)) for place in range(1, len(ordered))]
    comparisons = [change for pairs in families for change in _changes(pairs, level)]
    return Drift(
        level=level,
        runs=tuple(run.summary() for run in ordered),
        comparisons=tuple(comparisons),
        alarms=tuple(alarms(comparisons)),
        notes=tuple(
            f"{run.name} is compared with no run: none before it asked the same models"
            for run, pairs in zip(ordered[1:], families, strict=True)
            if not pairs
        ),
    )


def compare_latest(
    run: ArchivedRun, earlier: Sequence[ArchivedRun], level: float = LEVEL
) -> list[DriftChange]:
    """Returns the changes of one run, as in `compare_runs` with all these runs."""
    return list(_changes(list(_pairs([*earlier, run], len(earlier))), level))


class _Results(NamedTuple):
    """A measure of each shared case in one run, as columns of truths.

    Attributes:
        right: Right, passed or the same.
        known: The run has a result.
        fresh: A model was asked anew; a result from the journal is that of an earlier run.
    """

    right: Any
    known: Any
    fresh: Any


@dataclass(frozen=True)
class _Pair:
    """A measure in two runs of the same models."""

    measure: DriftMeasure
    before: ArchivedRun
    after: ArchivedRun

    @cached_property
    def shared(self) -> tuple[Frame, Frame]:
        """The shared cases in both runs, in one order, with the gold of the later run."""
        before, after = (
            run.tables.cases.set_index([run.tables.cases[name].astype(str) for name in KEY])
            for run in (self.before, self.after)
        )
        keys = after.index[after.index.isin(before.index)]
        gold = after.gold_code[keys]
        return before.loc[keys].assign(gold_code=gold), after.loc[keys]

    @cached_property
    def results(self) -> tuple[_Results, _Results]:
        """The results of both runs on the shared cases."""
        before, after = self.shared
        return self._results(before), self._results(after)

    @cached_property
    def common(self) -> "_Common":
        before, after = self.results
        rows = before.known & before.fresh & after.known & after.fresh
        pairs = Counter(zip(before.right[rows], after.right[rows], strict=True))
        both, lost, gained = pairs[True, True], pairs[True, False], pairs[False, True]
        return _Common(pairs.total(), both + lost, both + gained, lost, gained)

    @property
    def recoded(self) -> int | None:
        if self.measure.side == BOTH:
            return None
        before, after = (rows[f"code_{self.measure.side.lower()}"] for rows in self.shared)
        return int((before.notna() & after.notna() & ~self._equal(before, after)).sum())

    @property
    def changed(self) -> tuple[str, ...]:
        facts = {
            f"{column}_{side.lower()}": name.format(side=side)
            for side in self.measure.sides
            for column, name in (FACTS | (EVALUATOR_FACTS if self._is_judged else {})).items()
        }
        before, after = self.shared
        changed = [
            name
            for column, name in facts.items()
            if set(before[column].dropna()) != set(after[column].dropna())
        ]
        if self.before.taxonomy != self.after.taxonomy:
            changed.append("taxonomy")
        return tuple(changed)

    @property
    def why_nothing(self) -> str:
        count = len(self.shared[1])
        if not count:
            return "the runs share no case, equal in id and description"
        if self.measure.name == "roots" and self.shared[1].gold_code.isna().all():
            return f"none of the {count} shared cases has gold"
        for run, found in zip((self.after, self.before), self.results[::-1], strict=True):
            if found.known.any() and not (found.known & found.fresh).any():
                return f"the journal answered for {run.name}: annotate with fresh=true to ask anew"
        return f"none of the {count} shared cases was answered in both"

    @property
    def _is_judged(self) -> bool:
        return self.measure.name == "pass_rate"

    def _results(self, rows: Frame) -> _Results:
        codes = [rows[f"code_{side.lower()}"] for side in self.measure.sides]
        cached = [rows[f"cached_{side.lower()}"].eq(True) for side in self.measure.sides]
        if self.measure.side == BOTH:
            a, b = codes
            return _Results(self._equal(a, b), a.notna() & b.notna(), ~(cached[0] & cached[1]))
        own = self.measure.side.lower()
        answered, fresh = rows[f"format_{own}"].notna(), ~cached[0]
        if not self._is_judged:
            right = self._equal(codes[0], rows.gold_code, roots=True)
            return _Results(right, answered & rows.gold_code.notna(), fresh)
        verdicts = rows[f"verdict_{own}"]
        judged_anew = rows[f"evaluator_{own}"].notna() & ~rows[f"evaluator_cached_{own}"].eq(True)
        return _Results(verdicts.ne(Verdict.FAIL), answered & verdicts.notna(), fresh | judged_anew)

    def _equal(self, first: Any, second: Any, roots: bool = False) -> Any:
        """Returns a column: whether two columns have the same roots, or the same composition."""
        label = self.after.tables.label

        def value(line: Any) -> object:
            read = label(line) if isinstance(line, str) else None
            return read and (read.categories if roots else read.composition)

        pairs = zip(first, second, strict=True)
        return pd.Series([value(a) == value(b) for a, b in pairs], first.index, bool)


@dataclass(frozen=True)
class _Common:
    """Counts of the cases that both runs answered, and of those that were right."""

    cases: int
    before: int
    after: int
    lost: int
    gained: int

    @property
    def fisher(self) -> float:
        """The exact two-sided p-value of equal shares."""
        table = [[right, self.cases - right] for right in (self.after, self.before)]
        return float(cast(Any, stats.fisher_exact(table)).pvalue)

    @property
    def mcnemar(self) -> float:
        """The exact two-sided p-value of equally many lost and gained; 1 if nothing changed."""
        changed = self.lost + self.gained
        return float(stats.binomtest(self.lost, changed).pvalue) if changed else 1.0


def _pairs(ordered: Sequence[ArchivedRun], place: int) -> Iterator[_Pair]:
    """Yields each measure of one run, paired with the earlier run to compare with."""
    after = ordered[place]
    for measure in MEASURES:
        asked = after.asked(measure)
        if asked is None:
            continue
        latest = None
        for before in reversed(ordered[:place]):
            if before.asked(measure) == asked:
                pair = _Pair(measure, before, after)
                latest = latest or pair
                if pair.common.cases:
                    yield pair
                    break
        else:
            if latest is not None:
                yield latest


def _changes(pairs: Sequence[_Pair], level: float) -> Iterator[DriftChange]:
    """Yields the comparisons of one run, which form a family of tests."""
    results = dict(_family([pair.common for pair in pairs], level))
    for place, pair in enumerate(pairs):
        result = results.get(place)
        yield DriftChange(
            measure=pair.measure.name,
            side=pair.measure.side,
            models=pair.after.asked(pair.measure) or (),
            before=pair.before.name,
            after=pair.after.name,
            changed=pair.changed,
            shared=len(pair.shared[1]),
            recoded=pair.recoded,
            cases=pair.common.cases,
            result=result,
            reason=pair.why_nothing if result is None else None,
        )


def _family(results: Sequence[_Common], level: float) -> Iterator[tuple[int, DriftResult]]:
    """Yields the results with cases by their place, tested as one family."""
    tested = {place: common for place, common in enumerate(results) if common.cases}
    fisher = _corrected({place: common.fisher for place, common in tested.items()}, level)
    mcnemar = _corrected({place: common.mcnemar for place, common in tested.items()}, level)
    for place, common in tested.items():
        yield (
            place,
            DriftResult(
                right_before=common.before,
                right_after=common.after,
                lost=common.lost,
                gained=common.gained,
                tests=DriftTests(two_proportion=fisher[place], mcnemar=mcnemar[place]),
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


def alarms(changes: Iterable[DriftChange]) -> Iterator[str]:
    """Yields a sentence for each flagged measure."""
    for change in changes:
        result = change.result
        if result is not None and (flags := result.tests.flags):
            why = f"; changed as well: {', '.join(change.changed)}" if change.changed else ""
            yield (
                f"{change.label} ({', '.join(change.models)}): "
                f"{result.right_before} of {change.cases} shared cases in {change.before}, "
                f"{result.right_after} in {change.after} ({', '.join(flags)}){why}"
            )
