"""Changes of annotators over time: the runs of one archive compared on the cases that they share.

A run is compared with the latest earlier run in which the same model played the same role, on the
cases, equal in id and description, that both answered anew, by McNemar's exact test.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import product
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy import stats

from raylab.core.errors import RaylabError
from raylab.core.printable import join_names
from raylab.core.runs.records import Part, Record
from raylab.core.stats import LEVEL, holm
from raylab.label.config.jobs import MAX_ANNOTATORS
from raylab.label.protocol.outcome import EVALUATOR, Annotator, Verdict
from raylab.label.statistics.frame import Frame, Tables, view

KEY = ["case", "description_hash"]
"""The columns that identify a case in all runs: a reworded case is another one."""
FACTS = {
    "model": "response_model of {}",
    "prompt_hash": "prompt of {}",
    "seed": "seed of {}",
    "evaluator": f"response_model of {EVALUATOR}",
    "evaluator_prompt_hash": f"prompt of {EVALUATOR}",
}
"""Facts that may explain a change, by column; the evaluator's explain pass rates alone."""
LABELS = {"labels": "right labels", "pass_rate": "pass rate", "exact": "same code"}
NO_SHARED_CASE = "the runs share no case (equal id and description)"


class DriftChange(Part):
    """A measure of a run against an earlier run of the same models."""

    measure: str
    """`labels`, the right set; `pass_rate`; or `exact`, the same composition."""
    annotators: tuple[Annotator, ...]
    """One, or all for `exact`."""
    models: tuple[str, ...]
    before: str
    """Name of the earlier run."""
    after: str
    """Name of the later run."""
    changed: tuple[str, ...]
    """Other facts that changed, such as `prompt of A`."""
    shared: int
    """Cases that both runs have."""
    recoded: int | None
    """Shared cases in which the annotator's codes differ; None for several annotators."""
    cases: int
    """Shared cases that both runs answered anew, which this measure compares."""
    right_before: int
    """Cases that were right, passed or had the same codes in the earlier run."""
    right_after: int
    lost: int
    """Cases that were so only in the earlier run."""
    gained: int
    """Cases that are so only in the later run."""
    p_value: float | None
    """Of McNemar's exact test that the measure did not change; None without cases."""
    holm: float | None = None
    """The p-value corrected for all measures of the run by Holm's method (1979)."""
    reason: str | None
    """The reason why nothing could be compared."""

    @property
    def is_flagged(self) -> bool:
        """True if the corrected p-value is at most the level."""
        return self.holm is not None and self.holm <= LEVEL

    @property
    def label(self) -> str:
        """The measure and annotators in words."""
        return f"{LABELS[self.measure]}, {join_names(self.annotators, MAX_ANNOTATORS)}"

    @property
    def full_label(self) -> str:
        """The measure and annotators in words, with the models."""
        return f"{self.label} ({', '.join(self.models)})"


class Drift(Record):
    """The runs of an archive over time, each compared with an earlier one."""

    file: ClassVar[str] = "drift.json"
    version: ClassVar[int] = 7

    runs: tuple[str, ...]
    """Names, the earliest run first."""
    comparisons: tuple[DriftChange, ...]
    """Comparisons of each run after the first."""
    unpaired: Mapping[str, str] = {}
    """Reasons why a run, or some of its annotators, are compared with no earlier run, by run."""
    unread: Mapping[str, str] = {}
    """Runs that cannot be read, and so not compared, with the reasons."""


@dataclass(frozen=True)
class ArchivedRun:
    """A run of an archive.

    Attributes:
        started: Time of its start; runs are compared in this order.
        codebook: Name and version of its codebook; only runs of one are compared.
        models: Its annotators' models as configured; runs of the same models match.
    """

    name: str
    started: datetime
    codebook: str
    models: Mapping[Annotator, str]
    read: Callable[[], Tables]

    @cached_property
    def tables(self) -> Tables:
        """Its outcomes, read once."""
        return self.read()

    def is_readable(self, unread: dict[str, str]) -> bool:
        """Returns whether the outcomes can be read; adds the reason to `unread` if not."""
        if self.name not in unread:
            try:
                return bool(self.tables)
            except RaylabError as error:
                unread[self.name] = str(error)
        return False


def compare_runs(runs: Iterable[ArchivedRun], unread: Mapping[str, str] | None = None) -> Drift:
    """Compares runs over time.

    A run in which nothing changed has a flag with a chance of at most `LEVEL`: Holm's method
    corrects the p-values of all measures of a run. The family is one run, so that later runs do not
    change the results of earlier ones. Runs that cannot be read are left out and named; `unread`
    has the reasons of further ones.
    """
    ordered, faults = sorted(runs, key=lambda run: (run.started, run.name)), dict(unread or {})
    changes, unpaired = list[DriftChange](), dict[str, str]()
    for place, run in enumerate(ordered):
        changes += compare_latest(run, ordered[:place], faults)
        if run.name not in faults and (why := explain_unpaired(run, ordered[:place])):
            unpaired[run.name] = why
    names = tuple(run.name for run in ordered if run.name not in faults)
    return Drift(runs=names, comparisons=tuple(changes), unpaired=unpaired, unread=faults)


def explain_unpaired(run: ArchivedRun, earlier: Sequence[ArchivedRun]) -> str:
    """Says which annotators no earlier run of the codebook asked; empty if there are none."""
    if not earlier:
        return ""
    if not run.models:
        return "it asked no annotator"
    same = [before for before in earlier if before.codebook == run.codebook]
    if not same:
        last = earlier[-1]
        return f"no earlier run has its codebook {run.codebook}; {last.name} has {last.codebook}"
    new = [
        name
        for name, model in run.models.items()
        if all(before.models.get(name) != model for before in same)
    ]
    if not new:
        return ""
    own, others = (
        join_names([f"{each.get(name, 'nobody')} as {name}" for name in new], MAX_ANNOTATORS)
        for each in (run.models, same[-1].models)
    )
    return (
        f"no earlier run of its codebook asked {own}; {same[-1].name} asked {others}: "
        f"jobs/report.py 'runs=[{same[-1].name},{run.name}]' compares other models"
    )


def compare_latest(
    run: ArchivedRun, earlier: Sequence[ArchivedRun], unread: dict[str, str]
) -> list[DriftChange]:
    """Returns the changes of one run since earlier ones, as in `compare_runs` with all of them.

    Each measure is compared with the latest run of the same models that shares answered cases. Runs
    that cannot be read are added to `unread` with the reasons.
    """
    names, changes = tuple(run.models), list[DriftChange]()
    measures = [*product(("labels", "pass_rate"), zip(names, strict=True))]
    for measure, annotators in [*measures, *([("exact", names)] if len(names) > 1 else [])]:
        latest = None
        for before in reversed(earlier):
            same = all(before.models.get(name) == run.models[name] for name in annotators)
            if before.codebook != run.codebook or not same:
                continue
            if before.is_readable(unread) and run.is_readable(unread):
                change = _compare(measure, annotators, before, run)
                # A run that shares no answered case is named only where no earlier one does.
                latest = change if change.cases else latest or change
                if change.cases:
                    break
        changes += [latest] if latest else []
    p_values = {n: each.p_value for n, each in enumerate(changes) if each.p_value is not None}
    corrected = holm(np.array([*p_values.values()])).tolist()
    for place, p_value in zip(p_values, corrected, strict=True):
        changes[place] = changes[place].model_copy(update={"holm": p_value})
    return changes


def alarms(changes: Iterable[DriftChange]) -> Iterator[str]:
    """Yields a sentence for each flagged measure."""
    for change in changes:
        if change.is_flagged:
            others = f"; also changed: {', '.join(change.changed)}" if change.changed else ""
            yield (
                f"{change.full_label}: "
                f"{change.right_before} of {change.cases} shared cases in {change.before}, "
                f"{change.right_after} in {change.after}{others}"
            )


def explain_uncompared(changes: Iterable[DriftChange]) -> Iterator[str]:
    """Yields a sentence on each reason why measures of two runs could not be compared."""
    groups = dict[tuple[str, str, str], list[str]]()
    for change in changes:
        if change.reason:
            key = (change.before, change.after, change.reason)
            groups.setdefault(key, []).append(change.full_label)
    for (before, after, reason), labels in groups.items():
        names = join_names(labels, len(labels))
        yield f"{names} cannot be compared in {before} and {after}: {reason}"


def _compare(
    measure: str, annotators: tuple[Annotator, ...], before: ArchivedRun, after: ArchivedRun
) -> DriftChange:
    """Compares a measure of two runs of the same models, without its tests."""
    tables = after.tables
    # The shared cases in both runs, in one order, with the gold of the later run.
    was_coded, now_coded = (
        cases.set_index([cases[name].astype(str) for name in KEY])
        for cases in (before.tables.cases, tables.cases)
    )
    keys = now_coded.index[now_coded.index.isin(was_coded.index)]
    gold_codes = now_coded.gold_code[keys]
    rows = was_coded.loc[keys].assign(gold_code=gold_codes), now_coded.loc[keys]
    changed: list[str] = []
    for name, (column, fact) in product(annotators, FACTS.items()):
        values = (view(shared, name)[column].dropna() for shared in rows)
        counts = measure == "pass_rate" or EVALUATOR not in column
        if counts and len({frozenset(each) for each in values}) > 1:
            changed.append(fact.format(name))
    recoded = None
    if len(annotators) == 1:
        earlier, later = (view(shared, *annotators).code for shared in rows)
        differ = ~tables.equal(earlier, later, "composition")
        recoded = int((earlier.notna() & later.notna() & differ).sum())
    first, second = (_results(tables, shared, measure, annotators) for shared in rows)
    used = first.answered & second.answered
    was, now = first.right[used], second.right[used]
    lost, gained = int((was & ~now).sum()), int((now & ~was).sum())
    p_value = float(stats.binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0
    needs_gold = measure == "labels"
    missing = (
        f"no shared case{' with gold' if needs_gold else ''} was answered anew in both runs: "
        "annotate with fresh=true"
    )
    if needs_gold and gold_codes.isna().all():
        missing = "no shared case has gold"
    return DriftChange(
        measure=measure,
        annotators=annotators,
        models=tuple(after.models[name] for name in annotators),
        before=before.name,
        after=after.name,
        changed=tuple(changed),
        shared=len(used),
        recoded=recoded,
        cases=len(was),
        right_before=int(was.sum()),
        right_after=int(now.sum()),
        lost=lost,
        gained=gained,
        p_value=p_value if len(was) else None,
        reason=None if len(was) else missing if len(used) else NO_SHARED_CASE,
    )


def _results(tables: Tables, rows: Frame, measure: str, annotators: Sequence[Annotator]) -> Frame:
    """Returns a measure of each case, as two columns of truths.

    `right` is true if the case is right, passed or has the same codes; `answered` if this can be
    said and a model was asked anew.
    """
    own, *others = (view(rows, name) for name in annotators)
    # What the journal answered is the result of an earlier run.
    fresh = ~np.logical_and.reduce([each.cached.eq(True) for each in (own, *others)])
    if measure == "exact":
        same = [tables.equal(own.code, each.code, "composition") for each in others]
        right = np.logical_and.reduce(same)
        decided = np.logical_and.reduce([each.code.notna() for each in (own, *others)])
    elif measure == "labels":
        right = tables.right(own.code, rows.gold_code)
        decided = own.format.notna() & rows.gold_code.notna()
    else:
        right, decided = own.verdict.ne(Verdict.FAIL), own.format.notna() & own.verdict.notna()
        fresh |= own.evaluator.notna() & ~own.evaluator_cached.eq(True)
    return pd.DataFrame({"right": right, "answered": decided & fresh})
