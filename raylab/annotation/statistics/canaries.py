"""The results of one run on the canaries, a fixed set of cases for comparing runs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from raylab.annotation.input.cases import Case, packaged_cases
from raylab.annotation.outcome import Outcome, Verdict
from raylab.annotation.roles import EVALUATOR, OTHER, SIDES, Side
from raylab.annotation.statistics.annotators import (
    SourceReport,
    Sources,
    has_roots,
    is_cached,
    source_of,
)
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.annotation.statistics.pairs import PairAgreement, Pairs
from raylab.annotation.statistics.texts import LISTED
from raylab.codebook import Codebook, Label
from raylab.runs.measures import measures_of
from raylab.runs.records import Part

CanaryKey = tuple[str, str]
"""Id and SHA-256 of the description, so that a reworded case counts as another."""
Canary = Mapping[CanaryKey, Label | None]
"""The gold label of each canary; None if there is none."""
BOTH = " and ".join(SIDES)
FACTS = ("response_model", "prompt", "seed")


class CanaryMeasure(NamedTuple):
    """A measure on the canaries: one of `SourceReport`, of one side or of both."""

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
    *(CanaryMeasure(name, side) for name in ("roots", "pass_rate") for side in SIDES),
    CanaryMeasure("exact", BOTH),
)


class DriftSource(SourceReport):
    """The results of one served model with one prompt, as the annotator of a side."""

    side: Side


class CanaryEstimate(Estimate):
    """A measure of one run on the canaries."""

    measure: str
    side: str
    cached: int
    """Results left out because they came from the journal, that is from an earlier run."""


class DriftRun(Part):
    """One run in a comparison over time."""

    run: str
    started: str
    """Time in ISO 8601."""
    taxonomy: str | None
    """Version of the taxonomy; None if it is not known."""
    cases: int
    canaries: int
    """Canaries among its cases."""
    agreement: PairAgreement
    sources: tuple[DriftSource, ...]
    canary: tuple[CanaryEstimate, ...]


def canary_of(cases: Iterable[Case]) -> Canary:
    """Returns cases as canaries."""
    return {(case.id, case.description_hash): case.gold_label for case in cases}


def packaged_canary(codebook: Codebook) -> Canary:
    """Returns the default canaries: the packaged cases with published codes."""
    return canary_of(packaged_cases("gold", codebook))


class RunCounts:
    """The counts of one run and its results on each canary."""

    def __init__(
        self,
        name: str,
        started: datetime,
        taxonomy: str | None,
        canary: Canary,
        codebook: Codebook,
    ) -> None:
        """Starts without outcomes.

        Args:
            name: Name of the run.
            started: Time of its start; runs are compared in this order.
            taxonomy: Version of its taxonomy; None if it is not known.
            canary: The cases to compare on.
            codebook: Its codebook.
        """
        self.name, self.started, self.taxonomy = name, started, taxonomy
        self._canary = canary
        self._sources: dict[Side, Sources] = {side: Sources() for side in SIDES}
        self._pairs = Pairs(codebook)
        self._cases = 0
        self._seen: set[CanaryKey] = set()
        self._models: dict[Side, str] = {}
        self._told: dict[tuple[str, str], set[str]] = {}
        self.results: dict[CanaryMeasure, dict[CanaryKey, bool]] = {name: {} for name in MEASURES}
        self.cached: Counter[CanaryMeasure] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Counts a case."""
        self._cases += 1
        for side, sources in self._sources.items():
            sources.add(
                outcome.classification(side),
                outcome.evaluation(side),
                outcome.classification(OTHER[side]),
                outcome.gold_label,
            )
        self._pairs.add(*(outcome.label_of(side) for side in SIDES))
        key = (outcome.case, outcome.description_hash)
        if key in self._canary:
            self._seen.add(key)
            for side in SIDES:
                self._add_side(side, key, outcome)
            self._add_pair(key, outcome)

    def _add_side(self, side: Side, key: CanaryKey, outcome: Outcome) -> None:
        answer, report = outcome.classification(side), outcome.evaluation(side)
        if answer is None:
            return
        source = source_of(answer)
        self._models.setdefault(side, source.model)
        seed = "".join(str(call.seed) for call in answer.calls[:1])
        self._tell(side, source.response_model, source.prompt_hash, seed)
        asked = not is_cached(answer)
        gold = self._canary[key]
        if gold is not None:
            self._observe(CanaryMeasure("roots", side), key, has_roots(answer.label, gold), asked)
        if report is not None:
            for call in report.calls[:1]:
                self._tell(EVALUATOR, call.reply.response_model, call.prompt_hash)
            passed = report.verdict is not Verdict.FAIL
            asked |= bool(report.calls) and not is_cached(report)
            self._observe(CanaryMeasure("pass_rate", side), key, passed, asked)

    def _add_pair(self, key: CanaryKey, outcome: Outcome) -> None:
        labels = [outcome.label_of(side) for side in SIDES]
        if None in labels:
            return
        compositions = {label.composition for label in labels if label is not None}
        asked = not all(is_cached(answer.classification) for answer in outcome.answers.values())
        self._observe(CanaryMeasure("exact", BOTH), key, len(compositions) == 1, asked)

    def _observe(self, measure: CanaryMeasure, key: CanaryKey, result: bool, asked: bool) -> None:
        """Keeps a new result; one from the journal is another run's and only counted."""
        if asked:
            self.results[measure][key] = result
        else:
            self.cached[measure] += 1

    def _tell(self, role: str, *facts: str) -> None:
        """Notes facts of a role, in the order of `FACTS`."""
        for name, fact in zip(FACTS, facts, strict=False):
            known = self._told.setdefault((role, name), set())
            if len(known) < LISTED:
                known.add(fact)

    def asked(self, measure: CanaryMeasure) -> tuple[str, ...] | None:
        """Returns the models behind a measure, by which runs match; None if one is missing."""
        models = [self._models.get(side) for side in measure.sides]
        known = tuple(model for model in models if model is not None)
        return known if len(known) == len(models) else None

    def facts(self, measure: CanaryMeasure) -> dict[str, object]:
        """Returns facts that may explain a change of a measure, by name."""
        roles = [*measure.sides, *([EVALUATOR] if measure.name == "pass_rate" else [])]
        told = {
            f"{name} of {role}": self._told.get((role, name)) for role in roles for name in FACTS
        }
        return {**told, "taxonomy": self.taxonomy}

    def summary(self, seed: int) -> DriftRun:
        """Returns the report of the counts."""
        return DriftRun(
            run=self.name,
            started=self.started.isoformat(),
            taxonomy=self.taxonomy,
            cases=self._cases,
            canaries=len(self._seen),
            agreement=self._pairs.agreement(seed),
            sources=tuple(
                DriftSource(side=side, **dict(row))
                for side, sources in self._sources.items()
                for row in sources.summary()
            ),
            canary=tuple(
                CanaryEstimate(
                    measure=measure.name,
                    side=measure.side,
                    cached=self.cached[measure],
                    **dict(proportion(sum(results.values()), len(results))),
                )
                for measure, results in self.results.items()
            ),
        )


def count_run(
    name: str,
    started: datetime,
    outcomes: Iterable[Outcome],
    canary: Canary,
    codebook: Codebook,
    taxonomy: str | None = None,
) -> RunCounts:
    """Counts the outcomes of a run; they are read once and not kept. See `RunCounts`."""
    counts = RunCounts(name, started, taxonomy, canary, codebook)
    for outcome in outcomes:
        counts.add(outcome)
    return counts
