"""Annotation on Ray: checks the input first, archives each step, and can be resumed."""

import logging
from itertools import chain
from pathlib import Path

from raylab.core.config.base import URI
from raylab.core.errors import ArchiveError
from raylab.core.files import require_writable
from raylab.core.log import log_line
from raylab.core.printable import join_names, pluralize
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.codebooks.codebook import Codebook
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.judgement import UNCONFIRMED
from raylab.label.pages.progress import log_forecast, print_forecast
from raylab.label.protocol.dry_run import forecast
from raylab.label.protocol.run import (
    AnnotationRun,
    archive_location,
    open_annotation,
    open_cases,
    take_input,
)
from raylab.llm.embedded import SMOKE_NOTICE, uses_embedded
from raylab.llm.endpoints import require_endpoints
from raylab.llm.prices import Prices


def run_annotate(config: AnnotateConfig) -> None:
    """Annotates every case that the archive does not have yet, and reports.

    Raises:
        OwnerError: another process works on the run.
        KeyboardInterrupt: the user stopped the run, which can be resumed.
    """
    codebook = choose_codebook(config)
    if config.dry_run:
        rows = forecast(config, codebook, notices := list[str]())
        for notice in notices:
            log_line(f"note: {notice}")
        print_forecast(rows, config.llm.budget)
        return
    planned = Run.check(config)
    record = planned.read_record(RunRecord)
    location = archive_location(config.storage, config.archive, record)
    if record is None:
        _look_first(config, codebook, location)
    run = Run.open(config)
    with open_annotation(config, codebook, run, location) as annotation:
        with annotation.own() as owned:
            left = _annotate(owned)
            if not left:
                run.finish()
        # The report imports the charts' library, which takes seconds.
        from raylab.label.pages.annotation_run import write_results

        write_results(annotation, left)


def _look_first(config: AnnotateConfig, codebook: Codebook, location: str) -> None:
    """Refuses a new run that would fail before it is made, and prints an estimate of its cost."""
    rows = forecast(config, codebook)
    if not URI.match(location):
        require_writable(Path(location).parent)

    def has_answered(base_url: str) -> bool:
        try:
            with Archive.open(location, create=False) as archive:
                return archive.has_answers_from(base_url)
        except ArchiveError:
            # A new run may make its archive.
            return False

    if config.cluster.address_to_join is None:
        require_endpoints(config.llm, has_answered)
    log_forecast(rows, config.llm.budget)


def _annotate(annotation: AnnotationRun) -> str:
    """Annotates the cases that the archive does not have, and has people's decisions judged.

    Returns how many cases stay open, and why; nothing if none do.
    """
    config, archived = annotation.config, annotation.archived
    for warning in annotation.settings.warnings:
        log_line(f"warning: {warning}", logging.WARNING)
    new, done = take_input(annotation)
    unconfirmed = archived.counts(now=True).get(UNCONFIRMED, 0)
    judged = f", {pluralize(unconfirmed, 'decision')} to judge" if unconfirmed else ""
    log_line(
        f"{done + new} cases, {done} of them done{judged} -> {annotation.run}, "
        f"{annotation.archive.place}",
        done=done,
        total=done + new,
        unconfirmed=unconfirmed,
        uri=annotation.run.uri,
        archive=annotation.archive.place,
    )
    if not new and not unconfirmed:
        return ""
    if config.cluster.address_to_join is None:
        # The workers of a cluster may have keys and reach addresses that this machine does not.
        require_endpoints(config.llm, annotation.archive.has_answers_from)
    if unpriced := [*Prices(config.llm).find_unpriced()]:
        names = join_names(unpriced)
        log_line(f"note: no known price for {names}: give llm.prices to see the cost")
    if uses_embedded(config.llm):
        log_line(f"note: {SMOKE_NOTICE}")
    # Ray takes seconds to import; the checks above need none of it.
    from raylab.label.on_ray.driver import annotate_on_ray
    from raylab.label.protocol.decisions import unconfirmed_cases

    fresh = open_cases(annotation.cases(), archived) if new else ()
    cases = chain(unconfirmed_cases(archived, annotation.codebook), fresh)
    return annotate_on_ray(annotation, cases, done + new)
