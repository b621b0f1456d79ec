"""Annotation runs, their archives and input: finds them, and checks that they belong together."""

import hashlib
import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from itertools import chain, islice
from typing import Any, Self

from pydantic import ValidationError

from raylab.core.config.schema import explain_errors
from raylab.core.errors import ArchiveError, ConfigError, DataError, RunError
from raylab.core.files import Place
from raylab.core.log import log_line
from raylab.core.printable import join_names, pluralize, redact
from raylab.core.runs.run import Run, list_runs
from raylab.core.runs.run_record import ArchiveNote, RunRecord, identity_of
from raylab.label.archive.records import CaseHead
from raylab.label.archive.run import RunArchive
from raylab.label.archive.store import Archive
from raylab.label.codebooks.codebook import Codebook
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.input.cases import Case, generation_files, select_cases
from raylab.label.protocol.outcome import PROTOCOL
from raylab.label.protocol.settings import Settings, protocol_settings

ARCHIVE = "archive.db"


@dataclass(frozen=True)
class AnnotationRun:
    """An annotation run with everything that its steps need.

    Attributes:
        owner: Token of the run's ownership by this process; empty while it has none.
    """

    config: AnnotateConfig
    codebook: Codebook
    run: Run
    archive: Archive
    owner: str = ""

    @cached_property
    def settings(self) -> Settings:
        """The settings of the protocol."""
        return protocol_settings(self.config, self.run.name, self.codebook)

    @property
    def archived(self) -> RunArchive:
        """The run in its archive."""
        return self.archive.run(self.run.name)

    def cases(self, notices: list[str] | None = None) -> Iterator[tuple[str, Case]]:
        """Yields the cases of the input, each with its generation."""
        return select_cases(self.config, self.codebook, notices)

    @property
    def files(self) -> list[Place]:
        """The files of the cases; without `cases.path`, all sets of the codebook."""
        own, sets = self.config.cases.path, self.codebook.case_sets.values()
        published = [*chain(*sets)] if own is None else [own]
        generations = generation_files(self.config.generations).values()
        return [Place.at(file) for file in (*published, *generations)]

    @contextmanager
    def own(self) -> Generator[Self]:
        """Owns the run while in use; raises OwnerError if another process owns it."""
        with self.archived.own() as owner:
            yield replace(self, owner=owner.token)


def find_annotation_run(storage: str, name: str, archive: str | None) -> tuple[Run, AnnotateConfig]:
    """Finds an annotation run and its configuration.

    Args:
        archive: Location of its archive; None takes the file that its record names.

    Raises:
        RunError: There is no annotation run with this name, or its record cannot be used.
        ConfigError: The record names a server, and no archive is given.
    """
    run = Run.at(Place.at(storage) / name)
    record = run.read_record(RunRecord)
    if record is None or record.job != AnnotateConfig.job:
        raise RunError(f"{run} is no annotation run: {list_runs(storage)}")
    try:
        moved = {"storage": storage, "archive": archive or _recorded_file(record)}
        return run, AnnotateConfig.of_record(record.config, **moved)
    except ValidationError as error:
        problem = explain_errors(AnnotateConfig, error)[0]
        raise RunError(
            f"the record of run {run} has a configuration that this raylab cannot use: {problem}; "
            "use the version of raylab that made it"
        ) from error


def archive_location(storage: str, archive: str | None, record: RunRecord | None = None) -> str:
    """Returns the location of the archive: configured, the recorded file, or one in the storage.

    Args:
        archive: Configured location; None if there is none.
        record: Record of the run that the command goes on with.

    Raises:
        ConfigError: No archive is configured, and the record names a server, or the storage is
            remote.
    """
    location = archive or (record and _recorded_file(record))
    if location:
        return location
    place = Place.at(storage)
    if not place.is_local:
        raise ConfigError(
            f"runs are in {storage}, where no SQLite file can be: give archive=, a local "
            "file or the URL of a PostgreSQL database"
        )
    return f"{place.path}/{ARCHIVE}"


def _recorded_file(record: RunRecord) -> str | None:
    """Returns the file that a record names as the archive, if any.

    The record may be a stranger's, and PostgreSQL's client gives the user's password to any server.
    """
    recorded = record.config.get("archive")
    if isinstance(recorded, str) and "://" in recorded:
        raise ConfigError(
            f"the archive of run {record.name} is on a server, {redact(recorded)}, and a "
            "record alone opens no server: repeat the address as archive=URL"
        )
    return recorded if isinstance(recorded, str) else None


@contextmanager
def open_archive(run: Run, location: str, start: bool = False) -> Generator[Archive]:
    """Opens the archive of a run while in use; notes in the record what it holds when it is closed.

    Args:
        start: Let the archive lack the run, or make it, if the run was never archived.

    Raises:
        ArchiveError: The archive cannot be opened, is not that of the run, or holds fewer cases
            than the record notes.
    """
    before = run.record.archive
    starts = start and before is None
    with Archive.open(location, create=starts) as archive:
        if not starts:
            way_out = (
                "leave archive= out for the file in the run's record, give the place to which it "
                "was moved, or restore it from a copy"
            )
            try:
                row = archive.run(run.name).row()
            except ArchiveError as error:
                raise ArchiveError(f"{error}: {way_out}") from error
            now = _describe(run, archive)
            # Archives that were made apart may both have a run of this name.
            if row.uid != run.id or (before is not None and before.id != now.id):
                raise ArchiveError(
                    f"archive {archive.place} has another run of the name {run.name}: {way_out}"
                )
            # An old copy lacks cases that were paid for.
            if before is not None and now.cases < before.cases:
                raise ArchiveError(
                    f"archive {archive.place} holds {now.cases} cases of run {run.name}, which had "
                    f"{before.cases} before: {way_out}"
                )
        try:
            yield archive
        finally:
            # A run that was never started in the archive has no note there.
            record = run.record
            if record.archive is not None and record.archive != (note := _describe(run, archive)):
                run.write_record(record.model_copy(update={"archive": note}))


@contextmanager
def open_annotation(
    config: AnnotateConfig, codebook: Codebook, run: Run, location: str
) -> Generator[AnnotationRun]:
    """Starts or goes on with a run in its archive, which is open while in use."""
    files = [prompt for prompts in codebook.prompts.values() for prompt in prompts.files]
    with open_archive(run, location, start=True) as archive:
        record = run.record
        versions = {**record.versions, "protocol": PROTOCOL, "taxonomy": codebook.version}
        archived = archive.start_run(run.name, identity_of(config), versions, run.id)
        archived.add_prompts({file.hash: (file.name, file.version, file.text) for file in files})
        if config.archive is not None and config.archive != record.config.get("archive"):
            moved = {**record.config, "archive": config.archive}
            record = record.model_copy(update={"config": moved})
        run.write_record(record.model_copy(update={"archive": _describe(run, archive)}))
        yield AnnotationRun(config, codebook, run, archive)


def _describe(run: Run, archive: Archive) -> ArchiveNote:
    return ArchiveNote(id=archive.id, cases=sum(archive.run(run.name).counts().values()))


# The input of a run, which is read again as the cases are handed out: memory holds none of them.

CASES_PER_LOOKUP = 1000


def take_input(annotation: AnnotationRun) -> tuple[int, int]:
    """Reads the whole input, so that a bad row costs nothing, and opens the run for new cases.

    Returns the numbers of new cases and of archived ones. The input of a finished run may be gone;
    a case that the input lacks stays in the run. Both are reported in a warning. The record keeps
    for reports how the input was read, and which rows were left out; and the digest of the files,
    so that a finished run reads the same files only once.

    Raises:
        DataError: The input cannot be read, rows cannot be used, or a case is not as archived.
            Nothing is changed.
    """
    run, archived, new, done = annotation.run, annotation.archived, 0, 0
    vanished = dict.fromkeys(archived.ids())
    if run.is_finished and not all(file.exists() for file in annotation.files):
        gone = f"the input of run {run.name} is gone: the report counts the archived cases"
        log_line(f"warning: {gone}", logging.WARNING)
        return 0, len(vanished)
    # Another version of raylab may read the same files differently.
    digest = hashlib.sha256(version("raylab").encode())
    for file in annotation.files:
        with file.reader() as reader:
            while block := reader.read(1 << 20):
                digest.update(block)
    content = digest.hexdigest()
    if run.is_finished and run.record.input == content:
        for notice in run.record.notices:
            log_line(f"note: {notice}")
        return 0, len(vanished)
    notices = list[str]()
    whole = annotation.cases(notices)
    while cases := {case.id: case for _, case in islice(whole, CASES_PER_LOOKUP)}:
        heads = archived.find_heads(list(cases))
        # Nothing is written until the last row is read: a bad one leaves the run as it was.
        new, done = new + len(cases) - len(heads), done + len(heads)
        _refuse_changed(archived, cases, heads)
        for name in heads:
            # A worker of a killed job may still add cases.
            vanished.pop(name, None)
    for notice in notices:
        log_line(f"note: {notice}")
    if vanished:
        lost = f"{pluralize(len(vanished), 'case')} of run {run.name} ({join_names([*vanished])})"
        lacks = f"the input lacks {lost}, which the archive and the report keep"
        log_line(f"warning: {lacks}", logging.WARNING)
    record = run.record
    changed: dict[str, Any] = {
        "notices": tuple(notices),
        "input": None if vanished else content,
        "finished": None if new else record.finished,
    }
    if any(getattr(record, key) != value for key, value in changed.items()):
        run.write_record(record.model_copy(update=changed))
    return new, done + len(vanished)


def open_cases(
    cases: Iterator[tuple[str, Case]], archived: RunArchive
) -> Iterator[tuple[str, Case]]:
    """Yields the cases that are not archived yet, each with its generation."""
    while some := list(islice(cases, CASES_PER_LOOKUP)):
        there = archived.find_heads([case.id for _, case in some])
        yield from (item for item in some if item[1].id not in there)


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
