"""The human path of an annotation: open cases to a file for people, and their decisions back."""

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from raylab.annotation.archived import read_decision, read_outcome
from raylab.annotation.calls import ArchiveJournal
from raylab.annotation.human.confirm import settle, status_after
from raylab.annotation.human.review_file import read_decisions, review_rows
from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.run import archive_location, recorded_run
from raylab.annotation.settings import Settings, protocol_settings
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig
from raylab.errors import ConfigError, RunError
from raylab.llm.client import Client
from raylab.llm.embedded import Embedded, embedded_if_used
from raylab.log import bind_run, log_line
from raylab.report.annotation_run import conclude
from raylab.runs.run import Json, Run
from raylab.taxonomies import choose_codebook

REVIEW = "review.jsonl"


def run_review(config: AnnotateConfig) -> None:
    """Write the open cases of a run to its review file, or take the decisions in it back.

    Raises:
        RaylabError: what a user can act on, with the way out.
    """
    if config.name is None:
        raise ConfigError("review= needs name=, the run whose cases are reviewed")
    run, made = recorded_run(config.storage, config.name, config.archive)
    bind_run(run.name, run.id)
    path = config.review_file or _file_of(run)
    with Archive.open(archive_location(made), create=False) as archive:
        if config.review == "export":
            _export(made, run, archive, path)
        else:
            _import(made, run, archive, path, config.reviewer)


def _file_of(run: Run) -> Path:
    if not run.is_local:
        raise ConfigError(f"run {run} is in remote storage: name a local file in review_file=")
    return Path(run.path) / REVIEW


def _export(config: AnnotateConfig, run: Run, archive: Archive, path: Path) -> None:
    codebook = choose_codebook(config.protocol)
    waiting = (
        (read_outcome(case.case.body, codebook), case.case.description)
        for case in archive.open_cases(run.name)
    )
    rows = list(review_rows(waiting, config.protocol.seed))
    if path.exists() and _has_decisions(path):
        raise RunError(
            f"{path} holds decisions: take them back first with review=import, or name another "
            "file in review_file="
        )
    path.write_text("".join(_line(row) for row in rows), encoding="utf-8")
    log_line(
        f"{len(rows)} cases wait for a person -> {path}\n"
        "fill in decision (A, B or an OPT-Code line), justification and reviewer, then "
        f"python jobs/annotate.py name={run.name} review=import",
        waiting=len(rows),
        uri=str(path),
    )


def _line(row: Json) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _has_decisions(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        try:
            return any(json.loads(line)["decision"] for line in file if line.strip())
        except (ValueError, KeyError, TypeError):
            # Not as it was exported, so somebody has worked on it.
            return True


def _import(
    config: AnnotateConfig, run: Run, archive: Archive, path: Path, reviewer: str | None
) -> None:
    settings = protocol_settings(config, run.name, choose_codebook(config.protocol))

    def find(case: str) -> Outcome | None:
        stored = archive.case(run.name, case)
        return None if stored is None else read_outcome(stored.body, settings.codebook)

    read = read_decisions(path, find, settings.codebook, reviewer)
    new = [
        decision for decision in read if not _is_archived(archive, run, decision, settings.codebook)
    ]
    with embedded_if_used(config.llm) as embedded:
        statuses = asyncio.run(_settle(config, settings, run, archive, new, embedded))
    settled = statuses.count(Status.ACCEPTED)
    message = f"{len(new)} new decisions of {len(read)}: {settled} settle their case"
    log_line(message, decisions=len(read), new=len(new), settled=settled)
    conclude(config, run, archive)


def _is_archived(archive: Archive, run: Run, decision: HumanDecision, codebook: Codebook) -> bool:
    """Whether it is the latest decision on its case, as when a file is imported again."""
    decisions = list(archive.decisions(run.name, decision.case))
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
    """Have the evaluator confirm decisions, and archive each as soon as it is."""
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
