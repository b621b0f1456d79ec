"""The quality of one annotation run, from a stream of its outcomes.

Outcomes are counted and not kept: memory depends on the taxonomy and on the numbers of models,
prompts, generations and human decisions, but not on the number of cases.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from raylab.annotation.accuracy.audit import AuditReport, Audits
from raylab.annotation.accuracy.held_out import is_open_book
from raylab.annotation.accuracy.verdicts import JudgeCounts, JudgeReport
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
OPEN_BOOK = (
    "{cases} gold codes are of systems that the prompts name (meta.open_book): no accuracy counts "
    "them. cases.packaged=systems has gold that no prompt names."
)
FINAL, REVIEWED = "final", "reviewed"
NAMES = {
    **{side: f"annotator {side}" for side in SIDES},
    FINAL: "final code",
    REVIEWED: "with reviews",
}
"""The givers of codes: the annotators, the protocol, and the protocol with people's decisions."""
GIVERS = (*SIDES, FINAL)
"""The givers of codes while the protocol runs."""
EXAMPLES = 200
"""Longest example of a reason, in characters."""


class Ending(Part):
    """Cases that ended with one step of the protocol."""

    cases: int
    example: str | None
    """A case and its reason; None if there is no reason."""


class CaseReport(Part):
    """The cases of a run."""

    total: int
    with_gold: int
    """Cases with held-out gold."""
    open_book: int
    """Cases whose gold measures no accuracy, because the prompts name the system."""
    proposed_gold: int
    """Cases whose gold nobody reviewed."""
    traps: int
    status: dict[Status, Estimate]
    """The share of each status at the end of the protocol."""
    endings: dict[str, Ending]
    """Endings by the last step of the protocol."""
    paths: dict[str, int]
    """Cases by the steps taken, without scores."""
    seconds: Seconds | None
    """Time from the first call of a case to its end."""


class GenerationReport(Part):
    """One generation of the cases."""

    cases: int
    status: dict[Status, Estimate]
    agreement: PairAgreement
    gold: dict[str, GoldReport]


class BatchReport(Part):
    """The quality of a batch of outcomes."""

    smoke: bool
    """True if the embedded model answered, so that the figures mean nothing."""
    notices: tuple[str, ...]
    """Sentences that belong beside the figures."""
    distance: str
    """Version of the distance between sets of roots."""
    cases: CaseReport
    annotators: dict[Side, AnnotatorReport]
    agreement: AgreementReport
    gold: dict[str, GoldReport]
    """Accuracy of each annotator, the `final` code and, if people decided, the `reviewed` code."""
    confusion: Confusion
    judge: dict[Side, JudgeReport]
    """The evaluator's verdicts on each annotator's codes, against held-out gold."""
    audit: AuditReport | None
    """The audit of the decided cases; None if none was drawn."""
    sensitivity: dict[str, TrapReport]
    """Results on traps of each annotator and of the `final` code."""
    adjudication: AdjudicationReport
    decisions: DecisionReport
    usage: UsageReport
    generations: dict[str, GenerationReport]
    """Generations by name, if there are several."""


class BatchQuality:
    """Counts of the outcomes of a run."""

    def __init__(
        self,
        decisions: Iterable[HumanDecision],
        codebook: Codebook,
        audits: Audits | None = None,
    ) -> None:
        """Starts without outcomes.

        Args:
            decisions: People's decisions, in the order in which they were archived.
            codebook: Codebook of the labels.
            audits: Counts of the audit of the run; None if there is none.
        """
        self._judges: dict[Side, JudgeCounts] = {side: JudgeCounts() for side in SIDES}
        self._audits = audits
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
        self._trap_cases = self._proposed = self._waiting = self._open_book = 0

    def add(self, outcome: Outcome) -> None:
        """Counts a case; call it once for each."""
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
        for side, judge in self._judges.items():
            judge.add(outcome.answers.get(side), outcome.gold_label)
        if self._audits is not None:
            self._audits.add(outcome)
        self._measures.add(outcome)
        self._trap_cases += outcome.trap
        self._open_book += is_open_book(outcome)
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
        """Returns the report of all counts.

        Args:
            smoke: True if the embedded model answered, so that the figures mean nothing.
            warnings: Further weaknesses of the results, as in `Settings.warnings`.
            seed: Seed of the bootstrap intervals.
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
            judge={side: judge.summary() for side, judge in self._judges.items()},
            audit=None if self._audits is None else self._audits.summary(),
            sensitivity={name: traps.summary() for name, traps in self._traps.items()},
            adjudication=self._adjudications.summary(),
            decisions=self._decisions.summary(self._waiting),
            usage=self._usage.summary(),
            generations={
                name: group.summary(seed, any_reviewed) for name, group in sorted(several.items())
            },
        )

    def _notices(self) -> Iterator[str]:
        if self._proposed:
            yield PROPOSED.format(proposed=self._proposed, gold=self._all.with_gold)
        if self._open_book:
            yield OPEN_BOOK.format(cases=self._open_book)

    def _cases(self) -> CaseReport:
        return CaseReport(
            total=self._all.total,
            with_gold=self._all.with_gold,
            open_book=self._open_book,
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
    """The counts of all cases, or of one generation."""

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
