"""A random sample of decided cases to a file for people to classify, and their codes back."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from raylab.annotation.accuracy.audit import AuditedCase, AuditRow
from raylab.annotation.human.audit_sample import audited_codes, code_entry, draw_audit
from raylab.archive.rows import digest
from raylab.archive.store import Archive
from raylab.bounded import lines, parse_json
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig, ReviewConfig
from raylab.config.schema import problems_of
from raylab.errors import DataError, LabelError, RunError
from raylab.log import bind_run, log_line
from raylab.report.annotation_run import conclude
from raylab.review.open_run import open_run
from raylab.review.rows_file import write_rows
from raylab.runs.run import Run
from raylab.taxonomies import choose_codebook


def export_or_import_audit(config: ReviewConfig, share: float) -> None:
    """Writes the sample of an audit to a file, or takes people's codes and reports the run anew.

    Args:
        config: Has the file in `export` or `import_`.
        share: Share of the decided cases that is drawn.

    Raises:
        RunError: There is no annotation run of this name, the file holds codes, or cannot be
            written.
        DataError: The file cannot be read, or has rows that cannot be used; none is taken.
        OwnerError: Another process works on the run.
        ArchiveError: The run's archive cannot be opened or read.
    """
    with open_run(config) as (made, run, archive):
        bind_run(run.name, run.id)
        if config.export is not None:
            _export(made, run, archive, config.export, share)
        elif config.import_ is not None:
            with archive.run(run.name).own(config.wait):
                _import(made, run, archive, config.import_, share, config.reviewer)
            conclude(made, run, archive)


def _export(config: AnnotateConfig, run: Run, archive: Archive, path: Path, share: float) -> None:
    if path.exists() and any(row.code for _, row in _rows(path)):
        raise RunError(
            f"{path} holds codes: import them first by audit={share:g} import={path}, or give "
            "export= another file"
        )
    codebook, archived = choose_codebook(config.protocol), archive.run(run.name)
    draw_audit(archived, share, config.protocol.seed)
    drawn = list(audited_codes(archived.audit().entries(), codebook))
    # In an order like random, so that those filled in first are a random sample too.
    stored = (archived.case(case) for case in sorted(drawn, key=digest))
    rows = (
        AuditRow(case=one.case, description=one.description) for one in stored if one is not None
    )
    written = write_rows(path, rows)
    log_line(
        f"{written} decided cases are drawn -> {path}\n"
        f"fill in code ({codebook.label_name} line) and reviewer of every row, then\n"
        f"python jobs/review.py name={run.name} audit={share:g} import={path}",
        drawn=written,
        uri=str(path),
    )


def _import(
    config: AnnotateConfig,
    run: Run,
    archive: Archive,
    path: Path,
    share: float,
    reviewer: str | None,
) -> None:
    codebook, archived = choose_codebook(config.protocol), archive.run(run.name)
    draw_audit(archived, share, config.protocol.seed)
    drawn = audited_codes(archived.audit().entries(), codebook)
    given: dict[str, AuditedCase] = {}
    problems: list[str] = []
    for place, row in _rows(path):
        if not row.code.strip():
            continue
        try:
            stored = archived.case(row.case)
            if stored is None:
                raise DataError(f"the run has no case {row.case!a}: is it another run's file?")
            if row.case not in drawn:
                raise DataError(f"case {row.case} is not in the sample of audit={share:g}")
            if stored.description != row.description:
                raise DataError(f"case {row.case} has another description: leave it as exported")
            if row.case in given:
                raise DataError(f"case {row.case} is there twice: keep one row")
            given[row.case] = _audited(row, codebook, reviewer)
        except (DataError, LabelError) as error:
            problems.append(f"{place}: {str(error).splitlines()[0]}")
    if problems:
        listed = "\n  ".join(problems)
        raise DataError(f"{path} has rows that cannot be used, so none was taken:\n  {listed}")
    new = [one for one in given.values() if codebook.read(one.code) != drawn[one.case]]
    for one in new:
        archived.audit().add(code_entry(one))
    log_line(f"{len(new)} new codes of {len(given)}", codes=len(given), new=len(new))


def _audited(row: AuditRow, codebook: Codebook, reviewer: str | None) -> AuditedCase:
    name = row.reviewer.strip() or reviewer
    if not name:
        raise DataError(f"case {row.case} has a code and no reviewer: fill it in, or reviewer=NAME")
    return AuditedCase(
        case=row.case,
        code=str(codebook.parse_own(row.code.strip())),
        justification=row.justification.strip(),
        reviewer=name,
        decided=datetime.now(UTC),
    )


def _rows(path: Path) -> Iterator[tuple[str, AuditRow]]:
    """Yields the rows of an audit file, each with its place as `file:line`."""
    try:
        with path.open("rb") as file:
            for number, line in lines(file, str(path)):
                place = f"{path}:{number}"
                yield place, _row(place, line)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; audit= with export= writes such a file"
        ) from error


def _row(place: str, line: bytes) -> AuditRow:
    try:
        return AuditRow.model_validate(parse_json(line, place))
    except ValidationError as error:
        problem = problems_of(AuditRow, error.errors(include_url=False))[0]
        raise DataError(f"{place}: {problem}; leave the rows as they were exported") from error
