"""The input of a run against what the run has archived: new, changed and vanished cases.

The input is read twice: to its end before anything is paid, so that a bad row costs nothing, and
again as the cases are handed out, because memory holds none of them. Only where cases were added
or changed it is read once more, to compare those that are archived.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from raylab.annotation.input.cases import Case, CaseIds
from raylab.annotation.input.python_objects import is_source
from raylab.annotation.input.sources import input_files, select_cases
from raylab.annotation.outcome import read_outcome
from raylab.annotation.run import AnnotationRun
from raylab.archive.run import RunArchive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig
from raylab.errors import DataError
from raylab.log import log_line

CASES_PER_LOOKUP = 1000
SHOWN = 3


@dataclass(frozen=True)
class InputState:
    """The input of a run, read to its end.

    Attributes:
        hash: Hash of its cases.
        new: Number of cases that the run does not have.
        archived: Number of cases that it has.
        vanished: Number of those that the input lacks.
        first_vanished: Ids of the first of these.
    """

    hash: str
    new: int
    archived: int
    vanished: int
    first_vanished: tuple[str, ...]

    @property
    def covered(self) -> str | None:
        """The hash, if the run has exactly these cases once the new ones are annotated."""
        return None if self.vanished else self.hash


def read_first(config: AnnotateConfig, codebook: Codebook) -> None:
    """Opens every input file and reads the first cases: most mistakes show before there is a run.

    Raises:
        DataError: A file cannot be read, or a row cannot be used.
    """
    for file in input_files(config.cases, config.generations):
        with file.opened():
            pass
    next(_batches(config, codebook), None)


def needs_work(annotation: AnnotationRun) -> bool:
    """Returns False if a run is finished and its input is as it was then.

    What is packaged or installed is not compared: its names are part of the configuration.

    Raises:
        DataError: An input file cannot be read, or a row cannot be used.
    """
    config, run = annotation.config, annotation.run
    if not run.finished:
        return True
    files = input_files(config.cases, config.generations)
    if not all(file.exists() for file in files):
        log_line(
            f"warning: the input of run {run.name} is gone: what follows is of the cases in the "
            "archive",
            logging.WARNING,
        )
        return False
    if not files:
        return False
    digest = hashlib.sha256()
    for cases in _batches(config, annotation.codebook):
        digest.update(_contents(cases))
    return digest.hexdigest() != run.record.input


def take_input(annotation: AnnotationRun) -> InputState:
    """Reads the whole input, so that a bad row costs nothing, and opens the run for new cases.

    Raises:
        DataError: The input cannot be read, a row cannot be used, or a case is not as archived.
            Nothing is changed.
        ArchiveError: The archive fails.
        RunError: The record cannot be written.
    """
    run, record = annotation.run, annotation.run.record
    state = _compare(annotation, record.input)
    if state.vanished:
        shown = ", ".join(state.first_vanished) + (", ..." if state.vanished > SHOWN else "")
        log_line(
            f"warning: {state.vanished} cases of run {run.name} are gone from its input and stay "
            f"in the archive and the report: {shown}",
            logging.WARNING,
            vanished=state.vanished,
        )
    record = record.cover(state.covered)
    if state.new:
        annotation.archived.reopen()
        record = record.reopen()
    if record != run.record:
        run.write_record(record)
    return state


def _compare(annotation: AnnotationRun, before: str | None) -> InputState:
    """Reads the whole input and compares it with the archived cases.

    `before` is the hash of the input that the run was last compared with.
    """
    config, codebook, run = annotation.config, annotation.codebook, annotation.archived
    digest, ids = hashlib.sha256(), CaseIds()
    new = there = 0
    for cases in _batches(config, codebook):
        digest.update(_contents(cases))
        for case in cases:
            ids.add(case.id)
        archived = len(_archived_cases(cases, run))
        there += archived
        new += len(cases) - archived
    if there and digest.hexdigest() != before:
        for cases in _batches(config, codebook):
            _refuse_changed(_archived_cases(cases, run), run, codebook)
    vanished = sum(run.counts().values()) - there
    lost = (case for case in run.ids() if case not in ids) if vanished else iter(())
    return InputState(digest.hexdigest(), new, there + vanished, vanished, (*islice(lost, SHOWN),))


def refuse_other_description(case: Case, archived: str, run: str) -> None:
    """Refuses a case whose description has another SHA-256 than the archived one.

    Raises:
        DataError: It has.
    """
    if case.description_hash != archived:
        raise DataError(
            f"case {case.id} has another description than run {run} classified: "
            "restore it, give it another id, or choose another name="
        )


def _batches(config: AnnotateConfig, codebook: Codebook) -> Iterator[list[Case]]:
    cases = select_cases(config.cases, config.generations, codebook)
    while some := [case for _, case in islice(cases, CASES_PER_LOOKUP)]:
        if config.protocol.stages == "evaluate":
            _refuse_without_candidate(some)
        yield some


def _refuse_without_candidate(cases: Sequence[Case]) -> None:
    for case in cases:
        if case.candidate is None:
            raise DataError(
                f"case {case.id} has no candidate, which protocol.stages=evaluate judges: add "
                "candidate: {code, rationale} to its row, or let protocol.stages=all classify it"
            )


def _contents(cases: Sequence[Case]) -> bytes:
    return b"\n".join(case.content for case in cases)


def _archived_cases(cases: Sequence[Case], run: RunArchive) -> dict[str, Case]:
    """Returns the cases that are archived by id, after checking that none is described anew."""
    hashes = run.description_hashes([case.id for case in cases])
    there = {case.id: case for case in cases if case.id in hashes}
    for case in there.values():
        refuse_other_description(case, hashes[case.id], run.name)
    return there


def _refuse_changed(cases: Mapping[str, Case], run: RunArchive, codebook: Codebook) -> None:
    """Refuses archived cases with other gold, meta or candidate than archived."""
    for current in run.cases_at(list(run.sequences(list(cases)).values())) if cases else ():
        outcome, case = read_outcome(current.case.body, codebook), cases[current.case.case]
        # The version of an installed package says nothing of its source.
        same_meta = is_source(case.meta) or outcome.meta == case.meta
        changed = {
            "meta": not same_meta,
            "gold": outcome.gold_label != case.gold_label,
            "candidate": outcome.candidate != case.candidate,
        }
        if what := next((name for name, differs in changed.items() if differs), None):
            raise DataError(
                f"case {case.id} has another {what} than run {run.name} archived: restore "
                "it, give it another id, or choose another name=, which asks nothing again"
            )
