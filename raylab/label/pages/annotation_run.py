"""The end of an annotation: report, score tree and page."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from raylab.benchmark.checks.diagnosis import diagnose
from raylab.benchmark.pages.diagnosis import verdict_sections, write_diagnosis
from raylab.benchmark.responses import make_responses
from raylab.core.config.base import AS_PUBLISHED
from raylab.core.errors import LlmError, RunError
from raylab.core.log import log_line
from raylab.core.page.page import PAGE, write_page
from raylab.core.page.table import print_tables
from raylab.core.printable import pluralize
from raylab.core.runs.records import list_measures
from raylab.core.runs.run import SCORES
from raylab.core.tracking import track
from raylab.label.archive.records import RunRow
from raylab.label.archive.tables import as_json, digest
from raylab.label.conclusions.audit import audit_weights
from raylab.label.judgement import AUDIT, DECISION, UNCONFIRMED, Standing
from raylab.label.pages.annotation import FullCase, annotation_page
from raylab.label.pages.drift import archived_run, archived_runs, unread_lines
from raylab.label.protocol.decisions import ReadDecision, read_standings
from raylab.label.protocol.export import export, model_names
from raylab.label.protocol.outcome import Status, read_decision, read_outcome
from raylab.label.protocol.run import AnnotationRun
from raylab.label.statistics.accuracy import CODES, givers_of
from raylab.label.statistics.agreement import AgreementReport
from raylab.label.statistics.drift import compare_latest, explain_unpaired
from raylab.label.statistics.frame import Tables, read_run, tabulate
from raylab.label.statistics.people import people_report, substitute_report
from raylab.label.statistics.report import AnnotationReport, annotation_report
from raylab.label.statistics.scores import ScoreTreeReport, score_answers, score_tree
from raylab.llm.embedded import uses_embedded

MAX_EARLIER_RUNS = 12
"""Most earlier runs that the run may be compared with: the latest."""


def write_results(annotation: AnnotationRun, left: str = "") -> None:
    """Writes and prints the results of the run.

    The report includes decisions by people, so every call writes it again.

    Args:
        left: A sentence on the cases that were tried and stay open; empty if none do.

    Raises:
        ArchiveError: A record of the run was changed after it was archived.
        LlmError: Cases failed, or stay open.
    """
    run, config, archive = annotation.run, annotation.config, annotation.archive
    # A digest of all that a report depends on, without reading the cases. The evaluator's report on
    # a decision changes a record in place, and with it the counts.
    runs = [(row.name, row.uid, row.records) for row in archive.runs()]
    counts, cost = annotation.archived.counts(now=True), asdict(annotation.archived.cost())
    made_from = (run.record.config, run.record.versions, runs, counts, cost, archive.place, left)
    report, basis = None, digest(as_json(made_from))
    with suppress(RunError):
        report = run.read_record(AnnotationReport)
    if report is None or report.basis != basis or not (run / PAGE).exists():
        report = _report(annotation, left).model_copy(update={"basis": basis})
        run.write_record(report)
    track(config.tracking, run, report.cases.total, figures_of(report))
    if config.export is not None:
        path = export(annotation, config.export)
        log_line(f"{pluralize(report.cases.total, 'case')} -> {path}", uri=path)
    page = annotation_page(
        run.uri, run.record, report, _full_cases(annotation, report), verdict_sections(run)
    )
    write_page(run, page)
    print_tables(
        *page.tables,
        **report.model_dump(mode="json", include={"cases", "agreement", "gold"}),
        usage=report.usage.total.model_dump(mode="json"),
    )
    # The run said its own notices when it read the input.
    for notice in [each for each in report.notices if each not in run.record.notices]:
        log_line(f"note: {notice}")
    for sentence in page.lead:
        log_line(sentence)
    log_line(f"report {run / PAGE} and {report.file}", uri=run.uri)

    if waiting := counts.get(Status.HUMAN, 0):
        people = pluralize(waiting, "case waits", "cases wait")
        log_line(f"{people} for a person: {config.command('review', run.name)}", waiting=waiting)
    if unconfirmed := counts.get(UNCONFIRMED, 0):
        decisions = pluralize(unconfirmed, "decision waits", "decisions wait")
        log_line(
            f"{decisions} for the evaluator: repeat the annotation with resume=true",
            unconfirmed=unconfirmed,
        )
    failures: list[str] = []
    if failed := counts.get(Status.FAILED, 0):
        first = next(annotation.archived.cases(Status.FAILED)).case
        reason = read_outcome(first.body, annotation.codebook).reason
        failures.append(
            f"{pluralize(failed, 'case')} failed, first {first.case}: {reason}\n"
            "to try them again, run the same configuration under another name=: answered calls are "
            "not sent again"
        )
    if left:
        failures.append(f"{left}\nresume=true tries again")
    if failures:
        raise LlmError("\n".join(failures))


def figures_of(report: AnnotationReport) -> dict[str, float]:
    """Returns the main figures of a run by name, for trackers, without undefined ones."""
    agreement = {name: getattr(report.agreement, name) for name in list_measures(AgreementReport)}
    kappas = {f"kappa/{names}": pair.kappa for names, pair in report.agreement.pairs.items()}
    shares = {
        **{f"cases/{status}": share for status, share in report.cases.status.items()},
        **{f"agreement/{name}": figure for name, figure in (agreement | kappas).items()},
        **{f"gold/{name}": gold.labels for name, gold in report.gold.items()},
    }
    figures = {
        name: share.value for name, share in shares.items() if share and share.value is not None
    }
    return {**figures, "cases": report.cases.total, "cost": report.usage.total.priced}


def _report(annotation: AnnotationRun, left: str) -> AnnotationReport:
    """Reads the outcomes once; returns their report and writes the score tree and diagnosis."""
    archived, codebook, config = annotation.archived, annotation.codebook, annotation.config
    settings, head = annotation.settings, archived.row()
    tables = tabulate(
        read_run(archived, codebook),
        codebook,
        settings.answerers,
        open_book=settings.prompts.open_book,
    )
    people = {
        kind: read_standings(archived.decisions(kind), codebook) for kind in (DECISION, AUDIT)
    }
    made = [own for case in people[DECISION].values() for own in case.decisions if not own.is_lone]
    audited = {
        case: tuple(own.said.label for own in stands.in_force if own.said.label)
        for case, stands in people[AUDIT].items()
    }
    weights = audit_weights(archived, codebook, settings.answerers)
    archive = annotation.archive
    rows = [row for row in archive.runs() if row.records and row.name != head.name]
    earlier = [row for row in rows if (row.started, row.name) < (head.started, head.name)]
    before = earlier[-MAX_EARLIER_RUNS:]
    this = replace(archived_run(archive, head), read=lambda: tables)
    unread = dict[str, str]()
    others = [*archived_runs(archive, before, unread)]
    changes = compare_latest(this, others, unread)
    return annotation_report(
        tables,
        [own.said for own in sorted(made, key=lambda own: own.sequence)],
        audited or None,
        weights,
        uncertain=archived.cost().uncertain,
        smoke=uses_embedded(config.llm),
        warnings=(
            *settings.warnings,
            *annotation.run.record.notices,
            *([f"{left}."] if left else []),
            *unread_lines(unread),
        ),
        seed=config.protocol.seed,
        run=annotation.run.name,
        archive=archive.place,
        records=head.records,
        score_tree=_write_scores(annotation, head, tables),
        changes=changes,
        unpaired=explain_unpaired(this, others),
        **_people(annotation, tables, people, is_even=weights is None),
    )


def _write_scores(annotation: AnnotationRun, head: RunRow, tables: Tables) -> ScoreTreeReport:
    """Writes the score tree, and the diagnosis of the answers to gold if models can be compared."""
    run, config, names = annotation.run, annotation.config, model_names(annotation)
    answers = score_answers(tables, names)
    if len(names) > 1 and len(answers) and not uses_embedded(config.llm):
        # The texts of a further generation are those of the first in other words.
        published = answers[answers.generation == AS_PUBLISHED].item.unique()
        places = [head.sequence for head in annotation.archived.find_heads([*published]).values()]
        cases = (current.case for current in annotation.archived.cases(places=places))
        texts = pd.Series({case.case: case.description for case in cases}, published, str)
        golds = tables.cases.set_index("case").gold_code.astype(str)
        items = pd.DataFrame({"text": texts, "target": golds.reindex(published)})
        write_diagnosis(run, diagnose(make_responses(answers, items)))
    created = head.started.isoformat()
    logs, tree = score_tree(tables, names, created)
    for path, log in logs.items():
        run.write_record(log.model_copy(update={"run_id": run.id}), f"{SCORES}/{path}")
    return tree


def _people(
    annotation: AnnotationRun,
    tables: Tables,
    people: Mapping[str, Mapping[str, Standing[ReadDecision]]],
    is_even: bool,
) -> dict[str, Any]:
    """Returns the reports on the independent judgements by queue, as fields of the report."""
    config, distance = annotation.config, annotation.codebook.distance
    if config.review.people == 1:
        return {}
    seed = config.protocol.seed
    reports, substitutes = dict[str, Any](), dict[str, Any]()
    for kind, cases in people.items():
        if judged := [stands for stands in cases.values() if stands.judgements]:
            reports[kind] = people_report(judged, distance, seed)
    # On the cases of an active audit models look worse than they are.
    if AUDIT in reports and is_even:
        audited = {
            case: {
                name: own.said.label for name, own in stands.judgements.items() if own.said.label
            }
            for case, stands in people[AUDIT].items()
            if stands.judgements
        }
        rows = tables.cases[tables.cases.case.isin([*audited])]
        for name in givers_of(tables):
            codes = zip(rows.case, map(tables.label, rows[CODES[name]]), strict=True)
            pairs = [(audited[case], code) for case, code in codes]
            substitutes[name] = substitute_report(pairs, distance, config.review.epsilon, seed)
    return {"people": reports, "substitutes": substitutes}


def _full_cases(annotation: AnnotationRun, report: AnnotationReport) -> list[FullCase]:
    """Returns the cases of the disagreements in the report, in the same order."""
    archived, codebook = annotation.archived, annotation.codebook
    ids = [shown.case for shown in report.disagreements.shown]
    places = [head.sequence for head in archived.find_heads(ids).values()]
    cases: dict[str, FullCase] = {}
    for current in archived.cases(places=places):
        made = [row.body for row in current.decisions if not row.is_lone]
        latest = read_decision(made[-1], codebook) if made else None
        outcome = read_outcome(current.case.body, codebook)
        cases[current.case.case] = FullCase(outcome, current.case.description, latest)
    return [cases[case] for case in ids]
