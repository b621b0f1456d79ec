"""The review of a run: serves its page, and writes and reads files of its cases."""

import contextlib
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import uvicorn

from raylab.core.errors import ConfigError
from raylab.core.log import bind_run, log_line
from raylab.core.printable import pluralize
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.conclusions.audit import draw_actively, draw_audit
from raylab.label.config.jobs import AuditPlan, ReviewConfig
from raylab.label.judgement import AUDIT
from raylab.label.pages.annotation_run import write_results
from raylab.label.protocol.run import (
    AnnotationRun,
    archive_location,
    find_annotation_run,
    open_archive,
)
from raylab.label.review.access import access_of
from raylab.label.review.app import create_app
from raylab.label.review.label_studio import import_tasks, write_waiting
from raylab.label.review.reviews import Reviews
from raylab.label.statistics.accuracy import DECIDED

LEASE = timedelta(minutes=10)
"""Time for which a case stays reserved after a reviewer's tab is gone."""
SECONDS_TO_END = 10
"""For requests in flight."""


@contextmanager
def open_reviews(config: ReviewConfig) -> Generator[tuple[Reviews, AnnotationRun]]:
    """Opens the reviews of a run while in use, and draws the audit that is asked for.

    Nothing is sent to an endpoint, and no key is read.

    Raises:
        RunError: There is no annotation run of this name.
        ArchiveError: The archive of the run cannot be opened.
    """
    assert config.name is not None
    run, made = find_annotation_run(config.storage, config.name, config.archive)
    with open_archive(run, archive_location(made.storage, made.archive)) as archive:
        bind_run(run.name, run.id)
        annotation = AnnotationRun(made, choose_codebook(made), run, archive)
        archived, seed, audit = annotation.archived, made.protocol.seed, config.audit

        def draw() -> int:
            """Draws cases for the audit; returns the number of new ones."""
            if not isinstance(audit, AuditPlan):
                return draw_audit(archived, audit, seed) if audit else 0
            if audit.plan == "active":
                names = annotation.settings.answerers
                return draw_actively(archived, annotation.codebook, names, audit.cases, seed)
            decided = sum(n for status, n in archived.counts().items() if status in DECIDED)
            return draw_audit(archived, min(audit.cases / max(decided, 1), 1.0), seed)

        if audit is not None:
            drawn = draw()
            log_line(f"{pluralize(drawn, 'decided case')} drawn for the audit", drawn=drawn)
        people, codebook = made.review.people, annotation.codebook
        yield Reviews(archived, codebook, seed, LEASE, people, draw=draw), annotation


def export_cases(config: ReviewConfig, path: Path) -> None:
    """Writes the open cases of a run, or those drawn for the audit, as tasks of Label Studio.

    Raises:
        RunError: The file exists or cannot be written.
    """
    with open_reviews(config) as (reviews, annotation):
        written, shown = write_waiting(path, reviews, "" if config.audit is None else AUDIT)
    waits = "case waits" if written == 1 else "cases wait"
    log_line(
        f"{written} {waits} for a person -> {path}\n"
        f"give {shown} to a project of Label Studio as its labelling interface, annotate there, "
        "export JSON in place of this file, then\n"
        f"{config.command('review', annotation.run.name, **{'import': path})}",
        waiting=written,
        uri=str(path),
    )


def import_decisions(config: ReviewConfig, path: Path) -> None:
    """Archives the decisions in a file and reports the run anew.

    Raises:
        DataError: The file cannot be read, or holds no decision.
        LlmError: Cases of the run failed.
    """
    with open_reviews(config) as (reviews, annotation):
        done = import_tasks(path, reviews, config.reviewer)
        level = logging.WARNING if done.problems else logging.INFO
        log_line(str(done), level, decisions=done.read, new=done.new, counts=done.counts)
        write_results(annotation)


def serve(config: ReviewConfig) -> None:
    """Serves the page until Ctrl-C.

    Raises:
        ConfigError: The address is taken or demands a token.
    """
    access = access_of(config)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        # An address that is taken is reported before all else.
        listener = socket.create_server((config.host, config.port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"port {config.port} of {config.host} cannot be listened to ({error}): give another "
            "port=, or port=0 for any that is free"
        ) from error
    with listener, open_reviews(config) as (reviews, _), contextlib.suppress(KeyboardInterrupt):
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(reviews, access),
                log_level="warning",
                access_log=False,
                server_header=False,
                # `Access` decides whose word counts.
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=SECONDS_TO_END,
            )
        )
        host = f"[{config.host}]" if ":" in config.host else config.host
        log_line(
            f"open cases of run {config.name}: http://{host}:{listener.getsockname()[1]}/\n"
            "Ctrl-C ends the page; the command that made the run, with resume=true, has the "
            "evaluator judge what was decided and reports it"
        )
        server.run(sockets=[listener])
