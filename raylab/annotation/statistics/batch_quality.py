"""The quality of one annotation run, from a stream of its outcomes.

Outcomes are counted and let go: memory depends on the taxonomy, on how many models, prompts and
generations there are, and on how many cases people decided, but not on how many cases there are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.roles import OTHER, SIDES, Side
from raylab.annotation.statistics.adjudication import AdjudicationReport, Adjudications
from raylab.annotation.statistics.annotators import AnnotatorCounts, AnnotatorReport
from raylab.annotation.statistics.confusion import NONE, Confusion
from raylab.annotation.statistics.decisions import DecisionReport, Decisions
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.annotation.statistics.pairs import (
    AgreementReport,
    CaseMeasures,
    GoldReport,
    PairAgreement,
    Pairs,
)
from raylab.annotation.statistics.texts import LISTED, Texts
from raylab.annotation.statistics.traps import TrapReport, Traps
from raylab.annotation.statistics.usage import Durations, Seconds, Usage, UsageReport
from raylab.codebook import Codebook, Label
from raylab.llm.embedded import SMOKE_NOTICE
from raylab.runs.records import Part

PROPOSED = (
    "{proposed} of {gold} gold codes are one person's proposals that nobody reviewed "
    "(meta.reviewed is false): accuracy against them is provisional."
)
FINAL, REVIEWED = "final", "reviewed"
NAMES = {
    **{side: f"annotator {side}" for side in SIDES},
    FINAL: "final code",
    REVIEWED: "with reviews",
}
"""The sides that give a code: the annotators, the protocol, and the protocol with what people
decided."""
GIVERS = (*SIDES, FINAL)
"""Those that give a code while the protocol runs."""
EXAMPLES = 200
"""Characters of an example of why a case ended as it did."""


class Ending(Part):
    """Cases that ended with one step of the protocol."""

    cases: int
    example: str | None
    """A case and its reason; None where there is no reason."""


class CaseReport(Part):
    """The cases of a run."""

    total: int
    with_gold: int
    proposed_gold: int
    """Of the cases with gold, those whose gold nobody reviewed."""
    traps: int
    status: dict[Status, Estimate]
    """The share of each status, as the protocol left it."""
    endings: dict[str, Ending]
    """By the last step of the protocol."""
    paths: dict[str, int]
    """Cases by the steps taken, without scores."""
    seconds: Seconds | None
    """From the first call of a case to its end."""


class GenerationReport(Part):
    """One generation of the cases."""

    cases: int
    status: dict[Status, Estimate]
    agreement: PairAgreement
    gold: dict[str, GoldReport]


class BatchReport(Part):
    """The quality of a batch of outcomes."""

    smoke: bool
    """A model answered whose answers mean nothing."""
    notices: tuple[str, ...]
    """Sentences that belong beside the figures."""
    distance: str
    """Version of the distance between sets of roots."""
    cases: CaseReport
    annotators: dict[Side, AnnotatorReport]
    agreement: AgreementReport
    gold: dict[str, GoldReport]
    """Of each annotator, the `final` code and, where people decided, the `reviewed` one."""
    confusion: Confusion
    sensitivity: dict[str, TrapReport]
    """Of each annotator and of the `final` code."""
    adjudication: AdjudicationReport
    decisions: DecisionReport
    usage: UsageReport
    generations: dict[str, GenerationReport]
    """By name, where there are several."""


class BatchQuality:
    """Counts the outcomes of a run as they come."""

    def __init__(self, decisions: Iterable[HumanDecision], codebook: Codebook) -> None:
        """Starts without outcomes.

        Args:
            decisions: Of people, in the order in which they were archived.
            codebook: That the outcomes have labels of.
        """
        self._codebook = codebook
        self._decisions = Decisions(decisions)
        self._all = _Group(codebook)
        self._generations = defaultdict[str, _Group](lambda: _Group(codebook))
        self._annotators: dict[Side, AnnotatorCounts] = {
            side: AnnotatorCounts(codebook) for side in SIDES
        }
        self._measures = CaseMeasures(codebook.distance)
        self._traps = {name: Traps(codebook) for name in GIVERS}
        self._adjudications = Adjudications(codebook)
        self._usage, self._durations = Usage(), Durations()
        self._paths, self._endings = Texts(), Texts()
        self._examples: dict[str, str] = {}
        self._trap_cases = self._proposed = self._waiting = 0

    def add(self, outcome: Outcome) -> None:
        """Counts a case; each comes once."""
        reviewed = self._decisions.label_of(outcome)
        self._all.add(outcome, reviewed)
        self._generations[outcome.generation].add(outcome, reviewed)
        self._waiting += outcome.status is Status.HUMAN and reviewed is None
        for side, counts in self._annotators.items():
            counts.add(
                outcome.classification(side),
                outcome.evaluation(side),
                outcome.classification(OTHER[side]),
                outcome.gold_label,
            )
        self._measures.add(outcome)
        self._trap_cases += outcome.trap
        self._proposed += outcome.gold_label is not None and outcome.meta.get("reviewed") is False
        for side in SIDES:
            self._traps[side].add(outcome, outcome.label_of(side))
        self._traps[FINAL].add(outcome, outcome.label)
        self._adjudications.add(outcome.adjudication)
        self._usage.add(outcome)
        self._durations.add((outcome.finished - outcome.started).total_seconds())
        self._add_path(outcome)

    def _add_path(self, outcome: Outcome) -> None:
        steps = [":".join(step.split(":")[:2]) for step in outcome.path]
        self._paths.add([" > ".join(steps)])
        ending = steps[-1] if steps else outcome.status.value
        self._endings.add([ending])
        if outcome.reason is not None and len(self._examples) < LISTED:
            self._examples.setdefault(ending, f"{outcome.case}: {outcome.reason}"[:EXAMPLES])

    def report(
        self, *, smoke: bool = False, warnings: Sequence[str] = (), seed: int = 307
    ) -> BatchReport:
        """Returns everything that was counted.

        Args:
            smoke: The embedded model answered, so that the figures mean nothing.
            warnings: What else makes the results worth less, as `Settings.warnings`.
            seed: Of the bootstrap intervals.
        """
        several = self._generations if len(self._generations) > 1 else {}
        any_reviewed = self._decisions.any
        return BatchReport(
            smoke=smoke,
            notices=(*([SMOKE_NOTICE] if smoke else []), *self._notices(), *warnings),
            distance=self._codebook.distance.version,
            cases=self._cases(),
            annotators={side: counts.summary() for side, counts in self._annotators.items()},
            agreement=self._measures.with_means(self._all.pairs.agreement(seed), seed),
            gold=self._all.gold_reports(any_reviewed),
            confusion=self._all.confusion(),
            sensitivity={name: traps.summary() for name, traps in self._traps.items()},
            adjudication=self._adjudications.summary(),
            decisions=self._decisions.summary(self._waiting),
            usage=self._usage.summary(),
            generations={
                name: group.summary(seed, any_reviewed) for name, group in sorted(several.items())
            },
        )

    def _notices(self) -> list[str]:
        if not self._proposed:
            return []
        return [PROPOSED.format(proposed=self._proposed, gold=self._all.with_gold)]

    def _cases(self) -> CaseReport:
        return CaseReport(
            total=self._all.total,
            with_gold=self._all.with_gold,
            proposed_gold=self._proposed,
            traps=self._trap_cases,
            status=self._all.status(),
            endings={
                ending: Ending(cases=count, example=self._examples.get(ending))
                for ending, count in self._endings.summary().items()
            },
            paths=self._paths.summary(),
            seconds=self._durations.summary(),
        )


class _Group:
    """The counts that are kept of all cases and of each generation."""

    def __init__(self, codebook: Codebook) -> None:
        self._codebook = codebook
        self._statuses: Counter[Status] = Counter()
        self.pairs = Pairs(codebook)
        self._gold = {name: Pairs(codebook) for name in NAMES}
        self.with_gold = 0

    @property
    def total(self) -> int:
        return self._statuses.total()

    def add(self, outcome: Outcome, reviewed: Label | None) -> None:
        self._statuses[outcome.status] += 1
        self.pairs.add(*(outcome.label_of(side) for side in SIDES))
        if outcome.gold_label is None:
            return
        self.with_gold += 1
        for side in outcome.answers:
            self._gold[side].add(outcome.gold_label, outcome.label_of(side))
        for name, label in ((FINAL, outcome.label), (REVIEWED, reviewed)):
            if label is not None:
                self._gold[name].add(outcome.gold_label, label)

    def status(self) -> dict[Status, Estimate]:
        return {status: proportion(self._statuses[status], self.total) for status in Status}

    def gold_reports(self, any_reviewed: bool) -> dict[str, GoldReport]:
        return {
            name: pairs.against_gold(self.with_gold)
            for name, pairs in self._gold.items()
            if name != REVIEWED or any_reviewed
        }

    def confusion(self) -> Confusion:
        found = {"a_b": self.pairs.panel(*(NAMES[side] for side in SIDES))}
        if self.with_gold:
            for name in GIVERS:
                found[f"gold_{name}"] = self._gold[name].panel("gold", NAMES[name])
        return Confusion(labels=(*self._codebook.categories, NONE), panels=found)

    def summary(self, seed: int, any_reviewed: bool) -> GenerationReport:
        return GenerationReport(
            cases=self.total,
            status=self.status(),
            agreement=self.pairs.agreement(seed),
            gold=self.gold_reports(any_reviewed),
        )
