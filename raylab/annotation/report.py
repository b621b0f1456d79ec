"""The report of an annotation run, `report.json`, and the figures for comparing runs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

from pydantic import model_validator

from raylab.annotation.accuracy.verdicts import JudgeCounts, JudgeReport
from raylab.annotation.outcome import Status
from raylab.annotation.roles import SIDES
from raylab.annotation.scores import ScoreTreeReport
from raylab.annotation.statistics.batch_quality import GIVERS, NAMES, REVIEWED, BatchReport
from raylab.annotation.statistics.disagreements import DisagreementReport
from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.pairs import AgreementReport
from raylab.annotation.statistics.usage import CallUsage, Seconds
from raylab.runs.measures import Measure, measures_of
from raylab.runs.records import Part, Record

STATUSES = {
    Status.ACCEPTED: "accepted",
    Status.ADJUDICATED: "adjudicated",
    Status.HUMAN: "left to a person",
    Status.FAILED: "failed",
}
"""The statuses in words."""
COMPARED_AGREEMENT = ("exact", "same_roots", "weighted", "kappa", "alpha")
COMPARED_USAGE = ("cost", "sent", "prompt_tokens", "completion_tokens")
NEW_IN_VERSION_2 = {"judge", "audit"}
RENAMED = {"served": "response_model", "journalled": "cached"}
"""Renamed keys of reports without a schema version."""


class ArchiveHead(Part):
    """The archive of the run at the time of the report.

    Attributes:
        place: File or URL.
        records: Cases, decisions and audit entries of the run.
    """

    place: str
    records: int


class AnnotationReport(BatchReport, Record):
    """The report of an annotation run."""

    file: ClassVar[str] = "report.json"
    version: ClassVar[int] = 2

    run: str
    run_id: str | None
    """None for runs made before ids existed."""
    archive: ArchiveHead
    score_tree: ScoreTreeReport
    disagreements: DisagreementReport

    @model_validator(mode="after")
    def _check_givers(self) -> Self:
        sides = {*SIDES}
        lacking = [
            *(sides - self.annotators.keys()),
            *(sides - self.judge.keys()),
            *(set(GIVERS) - self.sensitivity.keys()),
        ]
        if lacking:
            raise ValueError(f"it lacks the figures of {', '.join(sorted(lacking))}")
        return self

    @classmethod
    def migrated(cls, content: dict[str, Any], version: int) -> dict[str, Any] | None:
        """Migrates reports of version 1, and those without a version, which have other key names.

        The earliest of these lack whole sections and cannot be read. What no report had before
        version 2 is empty: the judge against gold, and the audit.
        """
        if version > 1 or not content.keys() >= cls.model_fields.keys() - NEW_IN_VERSION_2:
            return None
        found = content
        if version == 0:
            found = cast("dict[str, Any]", _renamed(content))
            for case in found.get("disagreements", {}).get("shown", ()):
                case.update(candidates={side: case.pop(side.lower(), None) for side in SIDES})
        nothing = JudgeCounts().summary().model_dump(mode="json")
        return {
            **found,
            "cases": {**found["cases"], "open_book": 0},
            "score_tree": {**found["score_tree"], "notes": []},
            "judge": dict.fromkeys(SIDES, nothing),
            "audit": None,
        }


def _renamed(value: object) -> object:
    """Returns a value with its keys renamed, without an empty `reviewed`."""
    if isinstance(value, list):
        return [_renamed(one) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {
            RENAMED.get(key, key): _renamed(one)
            for key, one in items
            if key != REVIEWED or one is not None
        }
    return value


@dataclass(frozen=True)
class ComparedFigure:
    """A figure for comparing annotation runs.

    Attributes:
        path: Attributes and keys of the figure in the report, joined by dots.
        measure: Label, form and better direction.
        read: Reads the figure from a report; returns None if the report lacks it.
    """

    path: str
    measure: Measure
    read: Callable[[AnnotationReport], Estimate | float | None]


def _compared_figures() -> Iterator[ComparedFigure]:
    yield ComparedFigure("cases.total", Measure("cases", "count", None), lambda r: r.cases.total)
    for status, label in STATUSES.items():
        better = "lower" if status in (Status.HUMAN, Status.FAILED) else None
        yield ComparedFigure(
            f"cases.status.{status}",
            Measure(label, better=better),
            lambda r, status=status: r.cases.status.get(status),
        )
    for side in SIDES:
        yield ComparedFigure(
            f"annotators.{side}.evaluation.pass_rate",
            Measure(f"pass rate, {NAMES[side]}"),
            lambda r, side=side: r.annotators[side].evaluation.pass_rate,
        )
        yield ComparedFigure(
            f"annotators.{side}.format.unparsable",
            Measure(f"without a code, {NAMES[side]}", better="lower"),
            lambda r, side=side: r.annotators[side].format.unparsable,
        )
    yield from _of_part("agreement", AgreementReport, COMPARED_AGREEMENT, lambda r: r.agreement)
    for name, label in NAMES.items():
        yield ComparedFigure(
            f"gold.{name}.roots",
            Measure(f"right roots, {label}"),
            lambda r, name=name: r.gold[name].roots if name in r.gold else None,
        )
    area = measures_of(JudgeReport)["auc"]
    for side in SIDES:
        yield ComparedFigure(
            f"judge.{side}.auc",
            replace(area, label=f"{area.label}, {NAMES[side]}"),
            lambda r, side=side: r.judge[side].auc,
        )
    for name in GIVERS:
        yield ComparedFigure(
            f"sensitivity.{name}.taken",
            Measure(f"traps taken, {NAMES[name]}", better="lower"),
            lambda r, name=name: r.sensitivity[name].taken,
        )
    yield from _of_part("usage.total", CallUsage, COMPARED_USAGE, lambda r: r.usage.total)
    yield from _of_part("usage.total.seconds", Seconds, ("p50", "p99"), _seconds)


def _of_part(
    path: str,
    kind: type[Part],
    names: Iterable[str],
    part: Callable[[AnnotationReport], Part | None],
) -> Iterator[ComparedFigure]:
    """Yields figures of a part of the report, each with the measure beside its field."""
    measures = measures_of(kind)
    for name in names:
        yield ComparedFigure(
            f"{path}.{name}", measures[name], lambda r, name=name: getattr(part(r), name, None)
        )


def _seconds(report: AnnotationReport) -> Seconds | None:
    return report.usage.total.seconds


COMPARED_FIGURES = tuple(_compared_figures())
"""The figures for comparing annotation runs, in the order in which they are shown."""
