"""The input of a run against what the run has archived: new, changed and vanished cases.

The input is read to its end before anything is paid, so that a bad row costs nothing, and again as
the cases are handed out, because memory holds none of them. That of a finished run is also read to
see whether there is anything to do.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from raylab.annotation.input.cases import Case, generation_files, is_source, select_cases
from raylab.annotation.run import AnnotationRun
from raylab.archive.records import CaseHead
from raylab.archive.run import RunArchive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig
from raylab.errors import DataError
from raylab.files import Place
from raylab.log import log_line

CASES_PER_LOOKUP = 1000
SHOWN = 3


@dataclass(frozen=True)
class InputState:
    """The input of a run, read to its end.

    Attributes:
        new: Number of cases that the run does not have.
        archived: Number of cases that it has.
        vanished: Ids of those that the input lacks.
    """

    new: int
    archived: int
    vanished: tuple[str, ...]


def read_first(config: AnnotateConfig, codebook: Codebook) -> None:
    """Opens every input file and reads the first cases: most mistakes show before there is a run.

    Raises:
        DataError: A file cannot be read, or a row cannot be used.
    """
    for file in _files(config):
        with file.reader():
            pass
    next(_batches(config, codebook), None)


def needs_work(annotation: AnnotationRun) -> bool:
    """Returns False if a run is finished and has all cases of its input, and these alone.

    What is packaged or installed is not compared: its names are part of the configuration.

    Raises:
        DataError: As `take_input`.
        ArchiveError: The archive fails.
    """
    run, files = annotation.run, _files(annotation.config)
    if not run.finished:
        return True
    if not all(file.exists() for file in files):
        log_line(
            f"warning: the input of run {run.name} is gone: what follows is of the cases in the "
            "archive",
            logging.WARNING,
        )
        return False
    if not files:
        return False
    state = _compare(annotation)
    return bool(state.new or state.vanished)


def take_input(annotation: AnnotationRun) -> InputState:
    """Reads the whole input, so that a bad row costs nothing, and opens the run for new cases.

    Raises:
        DataError: The input cannot be read, a row cannot be used, or a case is not as archived.
            Nothing is changed.
        ArchiveError: The archive fails.
        RunError: The record cannot be written.
    """
    run, state = annotation.run, _compare(annotation)
    if count := len(state.vanished):
        shown = ", ".join(state.vanished[:SHOWN]) + (", ..." if count > SHOWN else "")
        log_line(
            f"warning: {count} cases of run {run.name} are gone from its input and stay "
            f"in the archive and the report: {shown}",
            logging.WARNING,
            vanished=count,
        )
    if state.new and run.finished:
        annotation.archived.reopen()
        run.write_record(run.record.model_copy(update={"finished": None}))
    return state


def open_cases(
    cases: Iterator[tuple[str, Case]], archived: RunArchive
) -> Iterator[tuple[str, Case]]:
    """Yields the cases that are not archived yet, each with its generation."""
    while some := list(islice(cases, CASES_PER_LOOKUP)):
        there = archived.find_heads([case.id for _, case in some])
        yield from (item for item in some if item[1].id not in there)


def _compare(annotation: AnnotationRun) -> InputState:
    """Reads the whole input and compares it with the archived cases."""
    run, new = annotation.archived, 0
    vanished = dict.fromkeys(run.ids())
    count = len(vanished)
    for batch in _batches(annotation.config, annotation.codebook):
        cases = {case.id: case for case in batch}
        heads = run.find_heads(list(cases))
        new += len(cases) - len(heads)
        _refuse_changed(run, cases, heads)
        for name in heads:
            # Another process may add cases while the run is not owned.
            vanished.pop(name, None)
    return InputState(new, count, tuple(vanished))


def _files(config: AnnotateConfig) -> list[Place]:
    """Returns the files that cases are read from, those of generations last."""
    own = [] if config.cases.path is None else [config.cases.path]
    return [Place.at(file) for file in (*own, *generation_files(config.generations).values())]


def _batches(config: AnnotateConfig, codebook: Codebook) -> Iterator[list[Case]]:
    cases = select_cases(config.cases, config.generations, codebook)
    while some := [case for _, case in islice(cases, CASES_PER_LOOKUP)]:
        for case in some:
            if config.protocol.stages == "evaluate" and case.candidate is None:
                raise DataError(
                    f"case {case.id} has no candidate, which protocol.stages=evaluate judges: add "
                    "candidate: {code, rationale} to its row, or let protocol.stages=all "
                    "classify it"
                )
        yield some


def _refuse_changed(
    run: RunArchive, cases: Mapping[str, Case], heads: Mapping[str, CaseHead]
) -> None:
    """Refuses cases that are not as archived."""
    places = [head.sequence for head in heads.values()]
    for body in (current.case.body for current in run.cases(places=places)):
        case = cases[body["case"]]
        values = {
            "description_hash": case.description_hash,
            "meta": case.meta,
            "gold_label": case.gold_label and str(case.gold_label),
            "candidate": case.candidate and case.candidate.model_dump(),
        }
        for key, value in values.items():
            # The version of an installed package says nothing of its source.
            if body[key] != value and not (key == "meta" and is_source(case.meta)):
                raise DataError(
                    f"case {case.id} has another {key.partition('_')[0]} than run {run.name} "
                    "archived: restore it, give it another id, or choose another name=, which asks "
                    "nothing again"
                )
