"""The quality of a benchmark on the terminal and in JSON lines."""

import logging
from collections.abc import Iterator

from rich.table import Table

from raylab.log import log_line, log_tables
from raylab.quality.record import QUALITY, TreeQuality

LOGGED_FILES = 5
"""Most unusable files that the terminal names."""


def log_quality(quality: TreeQuality) -> None:
    """Logs the lines that users search for, the warnings, and the metrics as a table."""
    for line in log_lines(quality):
        log_line(line)
    for warning in quality.warnings:
        log_line(f"warning: {warning}", logging.WARNING)
    files = quality.files
    message = f"{files.read} files read, {files.skipped} skipped"
    log_line(message, files=files.model_dump())
    for file in quality.skipped[:LOGGED_FILES]:
        log_line(f"  {file.path}: {file.reason}", **file.model_dump())
    if files.skipped > LOGGED_FILES:
        log_line(f"  more of them in {QUALITY}")
    content = quality.model_dump(mode="json", include={"figures", "models"})
    log_tables(quality_table(quality), **content)


def log_lines(quality: TreeQuality) -> Iterator[str]:
    """Yields the lines that users search for in the log of the job."""
    for model, accuracy in quality.models.items():
        generations = quality.generations.get(model)
        files = quality.file_counts.get(model)
        over = f" over {files} JSON files" if files else ""
        over = f" over {len(generations)} generations" if generations else over
        yield f"Model '{model}' mean accuracy{over}: {accuracy:.4f}"
    for name, figure in quality.figures.items():
        shown = f"not computed, {figure.reason}" if figure.value is None else f"{figure.value:.4f}"
        yield f"Benchmark {name}: {shown}"


def quality_table(quality: TreeQuality) -> Table:
    """Returns the metrics with their 95 % intervals."""
    table = Table(title="Benchmark quality")
    for label in ("metric", "value", "corrected", "95 % interval", "why not"):
        table.add_column(label, justify="right" if label in ("value", "corrected") else "left")
    for name, figure in quality.figures.items():
        interval = figure.interval
        table.add_row(
            name,
            *("-" if of is None else f"{of:.4f}" for of in (figure.value, figure.corrected)),
            "-" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}",
            figure.reason or figure.no_interval or "",
        )
    return table
