"""Statistics of one annotator: its answers' form, their judgement and their sources."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from raylab.annotation.outcome import Classification, Evaluation, Verdict
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.annotation.statistics.texts import LISTED, OTHERS, Texts, repair_kind
from raylab.codebook import Codebook, Label
from raylab.runs.measures import Measure
from raylab.runs.records import Part

FORMATS = ("strict", "repaired", "unparsable")
BAND = 10
"""Scores in one bin; the last also holds 100."""


class FormatReport(Part):
    """The form of one role's answers."""

    answers: int
    missing: int
    """Cases without an answer."""
    strict: Annotated[Estimate, Measure("answers as asked for")]
    repaired: Annotated[Estimate, Measure("repaired answers", better="lower")]
    unparsable: Annotated[Estimate, Measure("answers without a code", better="lower")]
    repairs: dict[str, int]
    """Cases by kind of repair."""


class JudgementReport(Part):
    """The evaluator's judgement of one role's codes.

    Unreadable codes get FAIL without asking an evaluator.
    """

    evaluated: int
    without_code: int
    """Evaluated answers without a code, for which no evaluator was asked."""
    pass_rate: Annotated[Estimate, Measure("pass rate")]
    """PASS or WEAK_PASS, after the caps."""
    acceptable: Annotated[Estimate, Measure("acceptable")]
    """PASS or WEAK_PASS with a score that reaches the threshold."""
    execution_issue: Annotated[Estimate, Measure("execution taken for a mechanism", better="lower")]
    """Share of the codes for which an evaluator was asked."""
    contradictory: Annotated[Estimate, Measure("contradictory reports", better="lower")]
    """Share of the codes for which an evaluator was asked."""
    repaired: Estimate
    """Repaired reports, as a share of the codes for which an evaluator was asked."""
    verdicts: dict[Verdict, int]
    """The verdicts after the caps."""
    raw_verdicts: dict[Verdict, int]
    """The verdicts of the evaluator."""
    issues: dict[str, int]
    mean_score: float | None
    """From 0 to 100; None without an evaluation."""
    scores: dict[int, int]
    """Evaluations by lowest score of the bin: 0, 10, ..., 90; the last also holds 100."""
    caps: dict[str, int]
    """Evaluations by the reason that lowered the score."""
    repairs: dict[str, int]
    """Evaluations by kind of repair."""


class SourceReport(Part):
    """The results of one served model with one prompt."""

    model: str
    """The model as requested; empty if the answers have no call."""
    response_model: str
    """The model as the server names it."""
    prompt: str
    """Name and version."""
    prompt_hash: str
    """SHA-256 of the prompt's text."""
    answers: int
    cached: int
    """Answers from the journal."""
    roots: Annotated[Estimate, Measure("right roots")]
    """Share of the cases with gold that got the right set of roots."""
    pass_rate: Annotated[Estimate, Measure("passed")]
    exact: Annotated[Estimate, Measure("equal composition")]
    """Share of answers with the composition of the other annotator."""


class AnnotatorReport(Part):
    """One annotator's answers."""

    format: FormatReport
    evaluation: JudgementReport
    sources: tuple[SourceReport, ...]


class AnswerFormats:
    """Counts of the form of one role's answers."""

    def __init__(self) -> None:
        self._formats: Counter[str] = Counter()
        self._repairs = Texts()
        self._missing = 0

    def add(self, classification: Classification | None) -> None:
        """Counts an answer; None stands for a missing one."""
        if classification is None:
            self._missing += 1
            return
        self._formats[classification.format] += 1
        self._repairs.add({repair_kind(repair) for repair in classification.repairs})

    def summary(self) -> FormatReport:
        """Returns the report of the counts."""
        answers = self._formats.total()
        strict, repaired, unparsable = (
            proportion(self._formats[form], answers) for form in FORMATS
        )
        return FormatReport(
            answers=answers,
            missing=self._missing,
            strict=strict,
            repaired=repaired,
            unparsable=unparsable,
            repairs=self._repairs.summary(),
        )


class Judgements:
    """Counts of the evaluator's judgements of one role's codes."""

    def __init__(self, codebook: Codebook) -> None:
        self._codebook = codebook
        self._verdicts: Counter[Verdict] = Counter()
        self._raw: Counter[Verdict | None] = Counter()
        self._scores: Counter[int] = Counter()
        self._issues: Counter[str] = Counter()
        self._caps, self._repairs = Texts(), Texts()
        self._acceptable = self._contradictory = self._repaired = 0

    def add(self, evaluation: Evaluation | None) -> None:
        """Counts an evaluation, if there is one."""
        if evaluation is None:
            return
        self._verdicts[evaluation.verdict] += 1
        self._raw[evaluation.raw_verdict] += 1
        self._scores[evaluation.score] += 1
        self._issues.update(evaluation.issues)
        self._acceptable += evaluation.acceptable
        self._contradictory += evaluation.contradictory
        self._repaired += bool(evaluation.repairs)
        self._caps.add({re.split("[,:]", cap)[0] for cap in evaluation.caps})
        self._repairs.add({repair_kind(repair) for repair in evaluation.repairs})

    def summary(self) -> JudgementReport:
        """Returns the report of the counts."""
        evaluated = self._verdicts.total()
        asked = evaluated - self._raw[None]
        total = sum(score * count for score, count in self._scores.items())
        return JudgementReport(
            evaluated=evaluated,
            without_code=self._raw[None],
            pass_rate=proportion(evaluated - self._verdicts[Verdict.FAIL], evaluated),
            acceptable=proportion(self._acceptable, evaluated),
            execution_issue=proportion(self._issues[self._codebook.execution_criterion], asked),
            contradictory=proportion(self._contradictory, asked),
            repaired=proportion(self._repaired, asked),
            verdicts={verdict: self._verdicts[verdict] for verdict in Verdict},
            raw_verdicts={verdict: self._raw[verdict] for verdict in Verdict},
            issues={one.name: self._issues[one.name] for one in self._codebook.criteria},
            mean_score=total / evaluated if evaluated else None,
            scores=self._bins(),
            caps=self._caps.summary(),
            repairs=self._repairs.summary(),
        )

    def _bins(self) -> dict[int, int]:
        bins = dict.fromkeys(range(0, 100, BAND), 0)
        for score, count in self._scores.items():
            bins[min(score, 99) // BAND * BAND] += count
        return bins


class AnswerSource(NamedTuple):
    """The model and the prompt of an annotator's answer; see `SourceReport`."""

    model: str
    response_model: str
    prompt: str
    prompt_hash: str


@dataclass
class _SourceCounts:
    answers: int = 0
    cached: int = 0
    evaluated: int = 0
    passed: int = 0
    both: int = 0
    exact: int = 0
    gold: int = 0
    right: int = 0


class Sources:
    """Counts of one annotator's results by source; a server may change during a run."""

    def __init__(self) -> None:
        self._counts: dict[AnswerSource, _SourceCounts] = {}

    def add(
        self,
        answer: Classification | None,
        evaluation: Evaluation | None,
        other: Classification | None,
        gold: Label | None,
    ) -> None:
        """Counts a case with an answer.

        Args:
            answer: The annotator's answer.
            evaluation: Evaluation of that answer.
            other: The other annotator's answer.
            gold: The right label.
        """
        if answer is None:
            return
        source = source_of(answer)
        if source not in self._counts and len(self._counts) >= LISTED:
            source = source._replace(response_model=OTHERS)
        counts = self._counts.setdefault(source, _SourceCounts())
        counts.answers += 1
        counts.cached += is_cached(answer)
        if evaluation is not None:
            counts.evaluated += 1
            counts.passed += evaluation.verdict is not Verdict.FAIL
        if answer.label is not None and other is not None and other.label is not None:
            counts.both += 1
            counts.exact += answer.label.composition == other.label.composition
        if gold is not None:
            counts.gold += 1
            counts.right += has_roots(answer.label, gold)

    def summary(self) -> tuple[SourceReport, ...]:
        """Returns a row for each source, in the order of their names."""
        return tuple(
            SourceReport(
                **source._asdict(),
                answers=counts.answers,
                cached=counts.cached,
                roots=proportion(counts.right, counts.gold),
                pass_rate=proportion(counts.passed, counts.evaluated),
                exact=proportion(counts.exact, counts.both),
            )
            for source, counts in sorted(self._counts.items())
        )


class AnnotatorCounts:
    """Counts of one annotator's answers."""

    def __init__(self, codebook: Codebook) -> None:
        self._formats, self._sources = AnswerFormats(), Sources()
        self._judgements = Judgements(codebook)

    def add(
        self,
        answer: Classification | None,
        evaluation: Evaluation | None,
        other: Classification | None,
        gold: Label | None,
    ) -> None:
        """Counts a case, with or without an answer; see `Sources.add`."""
        self._formats.add(answer)
        self._judgements.add(evaluation)
        self._sources.add(answer, evaluation, other, gold)

    def summary(self) -> AnnotatorReport:
        """Returns the report of the counts."""
        return AnnotatorReport(
            format=self._formats.summary(),
            evaluation=self._judgements.summary(),
            sources=self._sources.summary(),
        )


def source_of(answer: Classification) -> AnswerSource:
    """Returns the source of an answer, taken from its first call."""
    if not answer.calls:
        return AnswerSource("", "", "", "")
    call = answer.calls[0]
    return AnswerSource(call.model, call.reply.response_model, call.prompt, call.prompt_hash)


def is_cached(part: Classification | Evaluation) -> bool:
    """Returns True if the journal answered all of its calls."""
    return bool(part.calls) and all(call.reply.cached for call in part.calls)


def has_roots(label: Label | None, gold: Label) -> bool:
    """Returns True if a label has the set of roots of gold; False for None."""
    return label is not None and label.categories == gold.categories
