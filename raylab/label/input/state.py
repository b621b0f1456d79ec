"""The input of a run against what the run has archived: new, changed and vanished cases.

The input is read to its end before anything is paid, so that a bad row costs nothing, and again as
the cases are handed out, because memory holds none of them.
"""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice

from raylab.core.errors import DataError
from raylab.core.files import Place
from raylab.core.log import log_line
from raylab.core.printable import join_names, pluralize
from raylab.label.archive.records import CaseHead
from raylab.label.archive.run import RunArchive
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.input.cases import Case, generation_files
from raylab.label.protocol.run import AnnotationRun

CASES_PER_LOOKUP = 1000


def take_input(annotation: AnnotationRun) -> tuple[int, int]:
    """Reads the whole input, so that a bad row costs nothing, and opens the run for new cases.

    The input of a finished run may be gone; a case that the input lacks stays in the run. Both are
    reported in a warning.

    Returns:
        The numbers of new cases and of archived ones.

    Raises:
        DataError: The input cannot be read, a row cannot be used, or a case is not as archived.
            Nothing is changed.
        ArchiveError: The archive fails.
        RunError: The record cannot be written.
    """
    run, archived, new, done = annotation.run, annotation.archived, 0, 0
    vanished = dict.fromkeys(archived.ids())
    if run.is_finished and not all(file.exists() for file in _files(annotation.config)):
        _warn(f"the input of run {run.name} is gone: the report counts the archived cases")
        return 0, len(vanished)
    whole = annotation.cases()
    while cases := {case.id: case for _, case in islice(whole, CASES_PER_LOOKUP)}:
        heads = archived.find_heads(list(cases))
        new, done = new + len(cases) - len(heads), done + len(heads)
        _refuse_changed(archived, cases, heads)
        for name in heads:
            # A worker of a killed job may still add cases.
            vanished.pop(name, None)
    if vanished:
        lost = f"{pluralize(len(vanished), 'case')} of run {run.name} ({join_names([*vanished])})"
        _warn(f"the input lacks {lost}, which the archive and the report keep")
    if new and run.is_finished:
        run.write_record(run.record.model_copy(update={"finished": None}))
    return new, done + len(vanished)


def open_cases(
    cases: Iterator[tuple[str, Case]], archived: RunArchive
) -> Iterator[tuple[str, Case]]:
    """Yields the cases that are not archived yet, each with its generation."""
    while some := list(islice(cases, CASES_PER_LOOKUP)):
        there = archived.find_heads([case.id for _, case in some])
        yield from (item for item in some if item[1].id not in there)


def _warn(message: str) -> None:
    log_line(f"warning: {message}", logging.WARNING)


def _files(config: AnnotateConfig) -> list[Place]:
    """Returns the files that cases are read from, those of generations last."""
    own = [] if config.cases.path is None else [config.cases.path]
    return [Place.at(file) for file in (*own, *generation_files(config.generations).values())]


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
            if body[key] != value:
                raise DataError(
                    f"case {case.id} has another {key.partition('_')[0]} than run {run.name} "
                    "archived: restore it, give it another id, or choose another name=, which "
                    "sends no answered call again"
                )
