"""The report of an annotation run: `report.json`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from raylab.core.runs.records import Figure, Record
from raylab.core.stats import proportion
from raylab.label.codebooks.codebook import Label
from raylab.label.protocol.outcome import Annotator, HumanDecision
from raylab.label.statistics.accuracy import (
    CODES,
    REVIEWED,
    AuditReport,
    Confusion,
    GoldReport,
    JudgeReport,
    audit_report,
    confusion_report,
    givers_of,
    gold_report,
    judge_report,
)
from raylab.label.statistics.agreement import (
    AgreementReport,
    DisagreementReport,
    disagreement_report,
    measure_agreement,
)
from raylab.label.statistics.drift import DriftChange
from raylab.label.statistics.figures import (
    AdjudicationReport,
    AnnotatorReport,
    CaseReport,
    DecisionReport,
    TrapReport,
    UsageReport,
    adjudication_report,
    annotator_report,
    case_report,
    decision_report,
    trap_report,
    usage_report,
)
from raylab.label.statistics.frame import Tables, rank
from raylab.label.statistics.people import PeopleReport, SubstituteReport
from raylab.label.statistics.scores import ScoreTreeReport
from raylab.llm.chat import Cost
from raylab.llm.embedded import SMOKE_NOTICE


class AnnotationReport(Record):
    """The report of an annotation run."""

    file: ClassVar[str] = "report.json"
    version: ClassVar[int] = 9

    run: str = ""
    archive: str = ""
    """The file or URL of its archive."""
    records: int = 0
    """Cases, decisions and audit entries of the run at the time of the report."""
    basis: str = ""
    """SHA-256 of what the report was made from, by which a run that goes on knows it."""
    smoke: bool
    """True if the embedded model answered, so that the figures mean nothing."""
    notices: tuple[str, ...]
    """Sentences that belong beside the figures."""
    distance: str
    """Version of the distance between sets of labels."""
    cases: CaseReport
    codes: dict[str, Figure]
    """Share of the cases with a code by the composition of the code in force, people's decisions
    included, the most frequent first."""
    labels: dict[str, Figure]
    """Share of the cases with a code that name each label; one may name several."""
    annotators: dict[Annotator, AnnotatorReport]
    agreement: AgreementReport
    disagreements: DisagreementReport
    gold: dict[str, GoldReport]
    """Accuracy of each annotator, the `final` code and, if people decided, the `reviewed` code."""
    confusion: Confusion
    judge: dict[Annotator, JudgeReport]
    """The evaluator's verdicts on each annotator's codes, against held-out gold."""
    audit: AuditReport | None
    """The audit of the decided cases; None if none was drawn."""
    sensitivity: dict[str, TrapReport]
    """Results on traps of each annotator and of the `final` code."""
    adjudication: AdjudicationReport
    decisions: DecisionReport
    usage: UsageReport
    people: dict[str, PeopleReport] = Field(default={})
    """The judgements of two people a case, of the queues `decision` and `audit`."""
    substitutes: dict[str, SubstituteReport] = Field(default={})
    """Whether each annotator and the `final` code may stand in for people, on the audited cases."""
    score_tree: ScoreTreeReport = ScoreTreeReport(files=0, left_out=())
    changes: tuple[DriftChange, ...] = ()
    """The run against earlier runs of the archive, on the cases that they share."""


def annotation_report(
    tables: Tables,
    decisions: Sequence[HumanDecision] = (),
    audited: Mapping[str, Sequence[Label]] | None = None,
    *,
    uncertain: Cost | None = None,
    smoke: bool = False,
    warnings: Sequence[str] = (),
    seed: int = 307,
    **others: Any,
) -> AnnotationReport:
    """Returns the report of a run.

    Args:
        audited: Each case drawn for the audit with the codes that people gave it; None without an
            audit.
        warnings: Further weaknesses of the results, as in `Settings.warnings`.
        others: Fields of the report that have a default.
    """
    cases, people = case_report(tables), decision_report(tables, decisions)
    givers = givers_of(tables)
    final = tables.labels("code")
    return AnnotationReport(
        smoke=smoke,
        notices=(*([SMOKE_NOTICE] if smoke else []), *_notices(cases), *warnings),
        distance=tables.codebook.distance.version,
        cases=cases,
        codes={
            code: proportion(count, len(final))
            for code, count in rank(Counter(label.composition for label in final))
        },
        labels={
            name: proportion(sum(name in label.categories for label in final), len(final))
            for name in tables.codebook.categories
        },
        annotators={name: annotator_report(tables, name) for name in tables.annotators},
        agreement=measure_agreement(tables, seed),
        disagreements=disagreement_report(tables),
        gold={
            name: gold_report(tables, name)
            for name in (*givers, *([REVIEWED] if people.cases else []))
        },
        confusion=confusion_report(tables),
        judge={name: judge_report(tables, name) for name in tables.annotators},
        audit=None if audited is None else audit_report(tables, audited),
        sensitivity={name: trap_report(tables, CODES[name]) for name in givers},
        adjudication=adjudication_report(tables),
        decisions=people,
        usage=usage_report(tables, uncertain or Cost()),
        **others,
    )


def _notices(cases: CaseReport) -> Iterator[str]:
    if cases.proposed_gold:
        yield (
            "Gold codes that one person proposed and nobody reviewed (meta.reviewed is false): "
            f"{cases.proposed_gold:,} of {cases.with_gold:,}. Accuracy is provisional."
        )
    if cases.open_book:
        yield (
            "Gold codes that count in no accuracy, because the prompts name their systems "
            f"(meta.open_book): {cases.open_book:,}. No prompt names cases.packaged=systems."
        )
