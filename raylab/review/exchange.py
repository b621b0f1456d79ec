"""Open cases of an annotation run to a file for people to fill in, and their decisions back."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raylab.annotation.archived import read_decision, read_outcome
from raylab.annotation.calls import ArchiveJournal
from raylab.annotation.human.confirm import settle, status_after
from raylab.annotation.human.review_file import has_decisions, read_decisions, review_rows
from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.settings import Settings, protocol_settings
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig, ReviewConfig
from raylab.errors import RunError
from raylab.llm.client import Client
from raylab.llm.embedded import Embedded, embedded_if_used
from raylab.log import bind_run, log_line
from raylab.report.annotation_run import conclude
from raylab.review.open_run import open_run
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
    waiting = (
        (read_outcome(case.case.body, codebook), case.case.description)
        for case in archive.run(run.name).open_cases()
    )
    rows = [row.model_dump(mode="json") for row in review_rows(waiting, config.protocol.seed)]
    if path.exists() and has_decisions(path, codebook):
        raise RunError(
            f"{path} holds decisions: archive them first by import={path}, or give export= "
            "another file"
        )
    try:
        path.write_text("".join(_line(row) for row in rows), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error}): give export= another file") from error
    log_line(
        f"{len(rows)} cases wait for a person -> {path}\n"
        f"fill in decision (A, B or {codebook.label_name} line), justification and reviewer, then "
        f"python jobs/review.py name={run.name} import={path}",
        waiting=len(rows),
        uri=str(path),
    )


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _import(
    config: AnnotateConfig, run: Run, archive: Archive, path: Path, asked: ReviewConfig
) -> None:
    settings = protocol_settings(config, run.name, choose_codebook(config.protocol))

    def find(case: str) -> Outcome | None:
        stored = archive.run(run.name).case(case)
        return None if stored is None else read_outcome(stored.body, settings.codebook)

    read = read_decisions(path, find, settings.codebook, asked.reviewer)
    with archive.run(run.name).own(asked.wait), embedded_if_used(config.llm) as embedded:
        new = [
            decision
            for decision in read
            if not _is_archived(archive, run, decision, settings.codebook)
        ]
        statuses = asyncio.run(_settle(config, settings, run, archive, new, embedded))
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


async def _settle(
    config: AnnotateConfig,
    settings: Settings,
    run: Run,
    archive: Archive,
    decisions: Sequence[HumanDecision],
    embedded: Embedded | None,
) -> list[Status]:
    """Has the evaluator confirm decisions, and archive each as soon as it is."""
    async with Client(config.llm, ArchiveJournal(archive, run.name), embedded=embedded) as client:

        async def settle_one(decision: HumanDecision) -> Status:
            settled = await settle(decision, run.name, archive, client, settings)
            if (report := settled.confirmation) is not None and not report.acceptable:
                log_line(
                    f"case {settled.case} stays open, the evaluator refuses the code "
                    f"({report.verdict} {report.score}): {report.summary}",
                    logging.WARNING,
                    case=settled.case,
                )
            return status_after(settled)

        return list(await asyncio.gather(*map(settle_one, decisions)))
