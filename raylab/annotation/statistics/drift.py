"""Whether annotators change over time: runs of one archive compared on a fixed set of canaries.

A run is compared with the one before it in which the same model was asked in the same part, on the
canary cases that both answered. The two-proportion test (see `compare_proportions`) takes the two
runs for independent samples; since the cases are the same, McNemar's exact test, which looks at
the cases that changed alone, is given beside it and finds smaller changes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scipy import stats

from raylab.annotation.cases import Case, packaged_cases
from raylab.annotation.outcome import Classification, Evaluation, Outcome, Side, Verdict
from raylab.annotation.statistics.aggregates import (
    Pairs,
    Sources,
    has_roots,
    is_cached,
    reading,
    source_of,
)
from raylab.annotation.statistics.estimates import compare_proportions, proportion
from raylab.annotation.statistics.usage import LISTED
from raylab.codebook import SetDistance

Json = dict[str, Any]
CanaryKey = tuple[str, str]
"""Id and SHA-256 of the description, so that a case that was reworded is another."""
Canary = Mapping[CanaryKey, str | None]
"""Gold line of each canary; None where there is none."""
Measure = tuple[str, str]
"""Name and side."""

LEVEL = 0.05
POWER = 0.8
MEASURES: tuple[Measure, ...] = (
    ("roots", "A"),
    ("roots", "B"),
    ("pass_rate", "A"),
    ("pass_rate", "B"),
    ("exact", "A and B"),
)
SAID = {"roots": "right roots", "pass_rate": "passed", "exact": "equal composition"}
TESTS = ("two_proportion", "mcnemar")


def canary_of(cases: Iterable[Case]) -> Canary:
    """The canaries that some cases make."""
    return {(case.id, case.description_hash): case.gold for case in cases}


def packaged_canary() -> Canary:
    """The canaries unless others are chosen: the packaged cases with published codes."""
    return canary_of(packaged_cases("gold"))


class RunCounts:
    """One run as it is compared: its counts, and its results on each canary."""

    def __init__(
        self,
        name: str,
        started: datetime,
        taxonomy: str | None,
        canary: Canary,
        distance: SetDistance,
    ) -> None:
        """Start without outcomes.

        Args:
            name: Of the run.
            started: When; runs are compared in this order.
            taxonomy: Version of the taxonomy that it classified by; None if it is not known.
            canary: What it is compared on.
            distance: Between roots.
        """
        self.name, self.started, self.taxonomy = name, started, taxonomy
        self._canary, self._distance = canary, distance
        self._sources: dict[Side, Sources] = {"A": Sources(), "B": Sources()}
        self._pairs = Pairs()
        self._cases = 0
        self._seen: set[CanaryKey] = set()
        self.models: dict[Side, str] = {}
        self.results: dict[Measure, dict[CanaryKey, bool]] = {name: {} for name in MEASURES}
        self.cached: Counter[Measure] = Counter()
        self._told: dict[tuple[str, str], set[str]] = {}

    def add(self, outcome: Outcome) -> None:
        """Count a case.

        Raises:
            OptCodeError: The gold of the case or canary is no code.
        """
        a, b, gold = outcome.a, outcome.b, outcome.gold
        self._cases += 1
        self._sources["A"].add(a, outcome.evaluation_a, b, gold)
        self._sources["B"].add(b, outcome.evaluation_b, a, gold)
        self._pairs.add(a and a.code, b and b.code)
        key = (outcome.case, outcome.description_hash)
        if key in self._canary:
            self._seen.add(key)
            self._add_side("A", key, a, outcome.evaluation_a)
            self._add_side("B", key, b, outcome.evaluation_b)
            self._add_pair(key, a, b)

    def _add_side(
        self, side: Side, key: CanaryKey, answer: Classification | None, report: Evaluation | None
    ) -> None:
        if answer is None:
            return
        source = source_of(answer)
        self.models.setdefault(side, source.model)
        seeds = [str(call.seed) for call in answer.calls[:1]]
        self._tell(
            side,
            response_model=source.response_model,
            prompt=source.prompt_hash,
            seed="".join(seeds),
        )
        asked = not is_cached(answer)
        gold = self._canary[key]
        if gold is not None:
            self._observe(("roots", side), key, has_roots(answer.code, gold), asked)
        if report is not None:
            passed = report.verdict is not Verdict.FAIL
            for call in report.calls[:1]:
                self._tell("evaluator", response_model=call.response_model, prompt=call.prompt_hash)
            asked |= bool(report.calls) and not is_cached(report)
            self._observe(("pass_rate", side), key, passed, asked)

    def _add_pair(self, key: CanaryKey, a: Classification | None, b: Classification | None) -> None:
        if a is None or b is None or a.code is None or b.code is None:
            return
        exact = reading(a.code).composition == reading(b.code).composition
        asked = not (is_cached(a) and is_cached(b))
        self._observe(("exact", "A and B"), key, exact, asked)

    def _observe(self, measure: Measure, key: CanaryKey, result: bool, asked: bool) -> None:
        """Keep a result that was asked for; one from the journal is another run's."""
        if asked:
            self.results[measure][key] = result
        else:
            self.cached[measure] += 1

    def _tell(self, who: str, **facts: str) -> None:
        for name, fact in facts.items():
            known = self._told.setdefault((who, name), set())
            if len(known) < LISTED:
                known.add(fact)

    def asked(self, measure: Measure) -> tuple[str | None, ...]:
        """Who was asked for a measure; runs compare where this is equal."""
        return tuple(self.models.get(side) for side in _sides(measure))

    def facts(self, measure: Measure) -> dict[str, object]:
        """What may explain a change of a measure."""
        who: list[str] = [*_sides(measure)]
        if measure[0] == "pass_rate":
            who.append("evaluator")
        facts: dict[str, object] = {
            f"{name} of {part}": self._told.get((part, name))
            for part in who
            for name in ("response_model", "prompt", "seed")
        }
        return {**facts, "taxonomy": self.taxonomy}

    def summary(self, seed: int) -> Json:
        """As `compare_runs` describes it."""
        return {
            "run": self.name,
            "started": self.started.isoformat(),
            "taxonomy": self.taxonomy,
            "cases": self._cases,
            "canaries": len(self._seen),
            "agreement": self._pairs.agreement(self._distance, seed),
            "sources": [
                {"side": side, **row}
                for side, sources in self._sources.items()
                for row in sources.summary()
            ],
            "canary": [
                {
                    "measure": name,
                    "side": side,
                    **proportion(sum(results.values()), len(results)),
                    "cached": self.cached[name, side],
                }
                for (name, side), results in self.results.items()
            ],
        }


def count_run(
    name: str,
    started: datetime,
    outcomes: Iterable[Outcome],
    canary: Canary,
    distance: SetDistance,
    taxonomy: str | None = None,
) -> RunCounts:
    """Counts the outcomes of a run, which are read once and not kept; see `RunCounts`."""
    counts = RunCounts(name, started, taxonomy, canary, distance)
    for outcome in outcomes:
        counts.add(outcome)
    return counts


def compare_runs(
    runs: Iterable[RunCounts], *, level: float = LEVEL, power: float = POWER, seed: int = 307
) -> Json:
    """The content of `drift`.

    Flags hold `level` for a run as a whole: the p-values of all measures in which a run is compared
    are corrected by Holm's method, for each of the two tests on its own. The family is one run and
    not all of them, so that later runs do not change what was said of earlier ones.

    Args:
        runs: In any order.
        level: Chance of a false flag for a run in which nothing changed, in (0, 1).
        power: Of the changes called detectable, in (0, 1).
        seed: Of the bootstrap intervals.

    Returns:
        `level` and `power`.
        `runs`: In the order of time, each with its `run`, `started`, `taxonomy`, `cases`,
            `canaries`; `agreement` of A and B; `sources`, rows by side, model, version served and
            prompt (see `Sources`); and `canary`, by `measure` (`roots`, the right set; `pass_rate`;
            `exact`, the same composition) and `side`, its estimate on the canaries and the results
            left out because they were `cached`: these are of an earlier run.
        `comparisons`: Of each run after the first, by `measure`, `side`, `models`, `before` and
            `after` (names of runs): `changed`, what else is not as it was; `cases` that both
            answered; of these `right_before` and `right_after` (passed, or the same), `lost` (right
            before alone) and `gained`; `difference`, after less before, with its interval; `tests`,
            for each `p_value`, `holm` (corrected) and `flagged`; `detectable`, the shares `drop`
            and `rise` that the two-proportion test would find with `power` at the strictest level
            of Holm's method, null where no share is so low or high. `reason` is null, or why
            nothing could be compared, with null in place of all results.
        `alarms`: A sentence for each measure that is flagged.
    """
    ordered = sorted(runs, key=lambda run: (run.started, run.name))
    comparisons = [row for place in range(1, len(ordered)) for row in _rows(ordered, place)]
    for run in ordered:
        family = [row for row in comparisons if row["after"] == run.name and row["tests"]]
        for row in family:
            row["detectable"] = _detectable(row, level / len(family), power)
        for test in TESTS:
            _correct([row["tests"][test] for row in family], level)
    return {
        "level": level,
        "power": power,
        "runs": [run.summary(seed) for run in ordered],
        "comparisons": comparisons,
        "alarms": [alarm for row in comparisons for alarm in _alarms(row)],
    }


@dataclass(frozen=True)
class _Change:
    """Cases that both runs answered, by whether each was right."""

    cases: int
    before: int
    after: int
    lost: int
    gained: int


def _rows(ordered: Sequence[RunCounts], place: int) -> Iterator[Json]:
    """The comparisons of one run with those before it."""
    after = ordered[place]
    for measure in MEASURES:
        asked = after.asked(measure)
        if None in asked:
            continue
        earlier = [run for run in ordered[:place] if run.asked(measure) == asked]
        with_results = [run for run in earlier if run.results[measure]]
        before = (with_results or earlier or [None])[-1]
        if before is not None:
            yield _comparison(measure, before, after)


def _comparison(measure: Measure, before: RunCounts, after: RunCounts) -> Json:
    change = _change(before.results[measure], after.results[measure])
    facts = before.facts(measure)
    row: Json = {
        "measure": measure[0],
        "side": measure[1],
        "models": list(after.asked(measure)),
        "before": before.name,
        "after": after.name,
        "changed": [name for name, fact in after.facts(measure).items() if fact != facts[name]],
        "cases": change.cases,
    }
    if not change.cases:
        return (
            row
            | dict.fromkeys(
                (
                    "right_before",
                    "right_after",
                    "lost",
                    "gained",
                    "difference",
                    "tests",
                    "detectable",
                )
            )
            | {"reason": _why_nothing(measure, before, after)}
        )
    compared = compare_proportions((change.after, change.cases), (change.before, change.cases))
    return row | {
        "right_before": change.before,
        "right_after": change.after,
        "lost": change.lost,
        "gained": change.gained,
        "difference": {"value": compared["value"], "interval": compared["interval"]},
        "tests": {
            "two_proportion": {"p_value": compared["p_value"]},
            "mcnemar": {"p_value": _mcnemar(change)},
        },
        "reason": None,
    }


def _change(before: Mapping[CanaryKey, bool], after: Mapping[CanaryKey, bool]) -> _Change:
    pairs = Counter((before[key], after[key]) for key in before.keys() & after.keys())
    both, lost, gained = pairs[True, True], pairs[True, False], pairs[False, True]
    return _Change(pairs.total(), both + lost, both + gained, lost, gained)


def _mcnemar(change: _Change) -> float:
    """Exact two-sided p-value of as many lost as gained; 1 where nothing changed."""
    changed = change.lost + change.gained
    return float(stats.binomtest(change.lost, changed).pvalue) if changed else 1.0


def _why_nothing(measure: Measure, before: RunCounts, after: RunCounts) -> str:
    for run in (after, before):
        if not run.results[measure] and run.cached[measure]:
            return f"the journal answered for {run.name}: annotate with fresh=true to ask anew"
        if not run.results[measure]:
            return f"{run.name} has no result on a canary"
    return "no canary was answered in both"


def _correct(tests: Sequence[Json], level: float) -> None:
    """Adds Holm's correction (1979) to tests of one family."""
    highest = 0.0
    for place, test in enumerate(sorted(tests, key=lambda test: test["p_value"])):
        highest = max(highest, min(1.0, (len(tests) - place) * test["p_value"]))
        test["holm"], test["flagged"] = highest, highest <= level


def _detectable(row: Json, level: float, power: float) -> Json:
    """Shares that differ detectably from the share before, by Cohen's effect size h (1988)."""
    cases = row["cases"]
    h = float(stats.norm.isf(level / 2) + stats.norm.ppf(power)) * math.sqrt(2 / cases)
    angle = 2 * math.asin(math.sqrt(row["right_before"] / cases))
    low, high = angle - h, angle + h
    return {
        "drop": math.sin(low / 2) ** 2 if low >= 0 else None,
        "rise": math.sin(high / 2) ** 2 if high <= math.pi else None,
    }


def _alarms(row: Json) -> Iterator[str]:
    tests = [name for name in TESTS if row["tests"] and row["tests"][name]["flagged"]]
    if tests:
        why = f"; changed as well: {', '.join(row['changed'])}" if row["changed"] else ""
        yield (
            f"{SAID[row['measure']]}, {row['side']} ({', '.join(row['models'])}): "
            f"{row['right_before']} of {row['cases']} canaries in {row['before']}, "
            f"{row['right_after']} in {row['after']} ({', '.join(tests)}){why}"
        )


def _sides(measure: Measure) -> tuple[Side, ...]:
    return ("A", "B") if measure[0] == "exact" else ("A",) if measure[1] == "A" else ("B",)
