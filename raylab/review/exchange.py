"""Open cases of an annotation run to a file for people to fill in, and their decisions back."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from raylab.annotation.calls import client_of_run
from raylab.annotation.human.confirm import (
    are_same,
    confirmed,
    decision_row,
    pending_decision,
    status_after,
)
from raylab.annotation.human.review_file import UNDO, has_decisions, read_decisions, review_rows
from raylab.annotation.outcome import HumanDecision, Outcome, Status, read_decision, read_outcome
from raylab.annotation.settings import Settings, protocol_settings
from raylab.archive.review.pending import PendingDecision
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig, ReviewConfig
from raylab.errors import RunError
from raylab.llm.embedded import Embedded, embedded_if_used
from raylab.log import bind_run, log_line
from raylab.report.annotation_run import conclude
from raylab.review.open_run import open_run
from raylab.review.rows_file import write_rows
from raylab.runs.run import Run
from raylab.taxonomies import choose_codebook


def export_cases(config: ReviewConfig, path: Path) -> None:
    """Writes the open cases of a run to a file, a row a case, for people to fill in.

    Raises:
        RunError: There is no annotation run of this name, the file holds decisions, or cannot be
            written.
        ArchiveError: The run's archive cannot be opened or read.
    """
    with open_run(config) as (made, run, archive):
        bind_run(run.name, run.id)
        _export(made, run, archive, path)


def import_decisions(config: ReviewConfig, path: Path) -> None:
    """Has the evaluator confirm the decisions in a file, archives them and reports the run anew.

    Raises:
        RunError: There is no annotation run of this name.
        DataError: The file cannot be read, or has rows that cannot be used; none is imported.
        ConfigError: The evaluator's key is missing.
        LlmError: The evaluator could not be asked, or cases of the run failed.
        OwnerError: Another process works on the run.
        ArchiveError: The run's archive cannot be opened, read or written.
    """
    with open_run(config) as (made, run, archive):
        bind_run(run.name, run.id)
        _import(made, run, archive, path, config)


def _export(config: AnnotateConfig, run: Run, archive: Archive, path: Path) -> None:
    codebook = choose_codebook(config.protocol)
    stored = archive.run(run.name)
    sent = {one.sequence for one in stored.pending().all()}
    waiting = (
        (read_outcome(case.case.body, codebook), case.case.description)
        for case in stored.open_cases()
        if case.case.sequence not in sent
    )
    if path.exists() and has_decisions(path, codebook):
        raise RunError(
            f"{path} holds decisions: archive them first by import={path}, or give export= "
            "another file"
        )
    written = write_rows(path, review_rows(waiting, config.protocol.seed))
    log_line(
        f"{written} cases wait for a person -> {path}\n"
        f"fill in decision (A, B or {codebook.label_name} line), justification and reviewer, then "
        f"python jobs/review.py name={run.name} import={path}",
        waiting=written,
        uri=str(path),
    )


def _import(
    config: AnnotateConfig, run: Run, archive: Archive, path: Path, asked: ReviewConfig
) -> None:
    settings = protocol_settings(config, run.name, choose_codebook(config.protocol))

    def find(case: str) -> Outcome | None:
        stored = archive.run(run.name).case(case)
        return None if stored is None else read_outcome(stored.body, settings.codebook)

    read = read_decisions(path, find, settings.codebook, asked.reviewer)
    with archive.run(run.name).own(asked.wait) as owner, embedded_if_used(config.llm) as embedded:
        new = [
            decision
            for decision in read
            if not _is_archived(archive, run, decision, settings.codebook)
        ]
        statuses = asyncio.run(
            _settle(config, settings, archive.run(run.name), archive, new, owner.token, embedded)
        )
    settled = statuses.count(Status.ACCEPTED)
    message = f"{len(new)} new decisions of {len(read)}: {settled} settle their case"
    log_line(message, decisions=len(read), new=len(new), settled=settled)
    conclude(config, run, archive)


def _is_archived(archive: Archive, run: Run, decision: HumanDecision, codebook: Codebook) -> bool:
    """Returns whether it is the latest decision on its case, as when a file is imported again."""
    decisions = list(archive.run(run.name).decisions(decision.case))
    if not decisions:
        return False
    last = read_decision(decisions[-1].body, codebook)
    said = {"action", "choice", "justification", "reviewer"}
    codes = [item.classification and item.classification.label for item in (last, decision)]
    return last.model_dump(include=said) == decision.model_dump(include=said) and (
        codes[0] == codes[1]
    )


def _submit(run: RunArchive, decision: HumanDecision) -> PendingDecision | None:
    """Has a decision wait for the evaluator, so that the page has no other one judged meanwhile.

    Returns None if another reviewer's waits already. One of the same reviewer, as of an import that
    was killed, gives way.
    """
    pending, new = (
        run.pending(),
        pending_decision(decision, run.sequences([decision.case])[decision.case]),
    )
    found = pending.submit(new, leased=False)
    if found.reviewer == new.reviewer and not are_same(found, new):
        pending.cancel(found.sequence, found.reviewer)
        found = pending.submit(new, leased=False)
    if are_same(found, new):
        return found
    log_line(
        f"case {decision.case}: a decision of {found.reviewer} waits for the evaluator, so that of "
        f"{decision.reviewer} is left out: import it again when that is judged or cancelled",
        logging.WARNING,
        case=decision.case,
    )
    return None


async def _settle(
    config: AnnotateConfig,
    settings: Settings,
    run: RunArchive,
    archive: Archive,
    decisions: Sequence[HumanDecision],
    owner: str,
    embedded: Embedded | None,
) -> list[Status]:
    """Has the evaluator confirm decisions, and archive each as soon as it is."""
    async with client_of_run(config.llm, archive, run.name, owner, embedded) as client:

        async def settle_one(decision: HumanDecision) -> Status:
            waits = None if decision.action == UNDO else _submit(run, decision)
            if decision.action != UNDO and waits is None:
                return Status.HUMAN
            try:
                settled = await confirmed(decision, run, client, settings)
                run.add_decision(decision_row(settled), judged=waits and waits.token)
            except BaseException:
                if waits is not None:
                    run.pending().cancel(waits.sequence, waits.reviewer)
                raise
            if (report := settled.confirmation) is not None and not report.acceptable:
                log_line(
                    f"case {settled.case} stays open, the evaluator refuses the code "
                    f"({report.verdict} {report.score}): {report.summary}",
                    logging.WARNING,
                    case=settled.case,
                )
            return status_after(settled)

        return list(await asyncio.gather(*map(settle_one, decisions)))
