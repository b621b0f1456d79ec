"""The quality of a benchmark: its lines and table in the terminal, and its section of a page."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from raylab.log import log_line
from raylab.quality.metrics import METRICS
from raylab.quality.record import QUALITY, QualityFigure, TreeQuality
from raylab.report.page import Block, Fold, Notes, Section
from raylab.report.table import (
    MISSING,
    RULE,
    Cell,
    Column,
    Row,
    Table,
    counted,
    percent,
    print_tables,
    shades,
)

LOGGED_FILES, SHOWN_FILES = 5, 200
"""Most unusable files that the terminal and a page name."""


def log_quality(quality: TreeQuality) -> None:
    """Logs the lines that users search for, the warnings, and the metrics as a table."""
    for line in log_lines(quality):
        log_line(line)
    for warning in quality.warnings:
        log_line(f"warning: {warning}", logging.WARNING)
    files = quality.files
    log_line(_file_counts(quality), files=files.model_dump())
    for file in quality.skipped[:LOGGED_FILES]:
        log_line(f"  {file.path}: {file.reason}", **file.model_dump())
    if files.skipped > LOGGED_FILES:
        log_line(f"  more of them in {QUALITY}")
    content = quality.model_dump(mode="json", include={"figures", "models"})
    print_tables(figures_table(quality), **content)


def log_lines(quality: TreeQuality) -> Iterator[str]:
    """Yields the lines that users search for in the log of the job."""
    for model, accuracy in quality.models.items():
        generations = quality.generations.get(model)
        files = quality.file_counts.get(model)
        over = f" over {counted(files, 'JSON file')}" if files else ""
        over = f" over {counted(len(generations), 'generation')}" if generations else over
        yield f"Model '{model}' mean accuracy{over}: {accuracy:.4f}"
    for name, figure in quality.figures.items():
        shown = f"not computed, {figure.reason}" if figure.value is None else f"{figure.value:.4f}"
        yield f"Benchmark {name}: {shown}"


def figures_table(quality: TreeQuality) -> Table:
    """Returns the figures with their 95 % intervals, and on a page in words."""
    return Table(
        "Benchmark quality",
        [
            "metric",
            "value",
            "corrected",
            Column("95 % interval", text=True),
            Column("why not", text=True),
            Column("what it says", text=True, page_only=True),
            Column("formula", text=True, page_only=True),
        ],
        [[name, *_figure_cells(figure), *_words(name)] for name, figure in quality.figures.items()],
        "The figures with their 95 % intervals over the tasks; an interval is around the corrected "
        "figure, which leaves out what the chance of the tasks drawn adds.",
    )


def quality_section(
    place: int,
    name: str,
    quality: TreeQuality,
    lead: str = "",
    rules: Mapping[str, Mapping[str, float]] | None = None,
) -> Section:
    """Returns the section of a score tree.

    Args:
        place: Its number, which keeps its ids distinct from those of other trees.
        name: Name of the tree.
        quality: Its quality.
        lead: A sentence on the accuracies.
        rules: Accuracies of rules that learn nothing, by score tree or prior and rule.
    """
    blocks: list[Block] = [
        f"These figures describe the tasks by the scores that the models reached on them.{lead}",
        Notes(quality.warnings),
        figures_table(quality),
    ]
    if quality.models:
        blocks.append(_accuracy_table(name, quality, rules or {}))
    if not any(quality.generations.values()):
        blocks.append("The tree has no generations, so no accuracies stand by generation.")
    blocks += [f"Score files: {_file_counts(quality)}.", *_skipped(name, quality)]
    return Section(
        f"quality-{place}", f"Quality of {name} as a benchmark", blocks, f"Quality of {name}"
    )


def known_figures(quality: TreeQuality) -> dict[str, QualityFigure]:
    """Returns the figures that this raylab computes, in the order of the metrics."""
    return {name: quality.figures[name] for name in METRICS if name in quality.figures}


def _figure_cells(figure: QualityFigure) -> Row:
    value, corrected = (
        "-" if value is None else f"{value:.4f}" for value in (figure.value, figure.corrected)
    )
    between = Cell("-")
    if figure.interval is not None:
        low, high = figure.interval
        at = figure.value if figure.corrected is None else figure.corrected
        bar = None if at is None else (low, at, high)
        between = Cell(f"{low:.4f} to {high:.4f}", bar=bar)
    if figure.value is None:
        reason = Cell(figure.reason or "no reason was given", look=MISSING)
        return [Cell("not computed", look=MISSING), corrected, between, reason]
    return [value, corrected, between, figure.no_interval or ""]


def _words(metric: str) -> Row:
    definition = METRICS.get(metric)
    return ["", ""] if definition is None else [definition.meaning, definition.computation]


def _accuracy_table(
    name: str, quality: TreeQuality, rules: Mapping[str, Mapping[str, float]]
) -> Table:
    """Returns accuracies by model, generation and prior, shaded over the generations."""
    generations = list(
        dict.fromkeys(key for values in quality.generations.values() for key in values)
    )
    depths = iter(
        shades(
            quality.generations.get(model, {}).get(key)
            for model in quality.models
            for key in generations
        )
    )
    rows: list[Row] = []
    for model, accuracy in quality.models.items():
        accuracies = quality.generations.get(model, {})
        cells = [Cell(percent(accuracies.get(key)), shade=next(depths)) for key in generations]
        priors = [percent(prior.get(model)) for prior in quality.priors.values()]
        rows.append([model, percent(accuracy), *cells, *priors])
    rows.append(RULE)
    for rule, accuracy in rules.get(name, {}).items():
        priors = [percent(rules.get(uri, {}).get(rule)) for uri in quality.priors]
        rows.append([rule, percent(accuracy), *["-"] * len(generations), *priors])
    return Table(
        f"Accuracies of {name}",
        ["model", "accuracy", *generations, *(f"prior: {uri}" for uri in quality.priors)],
        rows,
        "Accuracy of each model: the mean over its generations, each generation, the deeper the "
        "higher, and the prior benchmarks.",
    )


def _file_counts(quality: TreeQuality) -> str:
    files = quality.files
    return f"{counted(files.read, 'file')} read, {files.skipped:,} skipped"


def _skipped(name: str, quality: TreeQuality) -> Sequence[Block]:
    if not quality.skipped:
        return []
    files, count = quality.skipped[:SHOWN_FILES], quality.files.skipped
    first = f"The first {len(files)} of {count:,} files" if count > len(files) else "Each file"
    columns = ["file", Column("reason", text=True)]
    rows = [[file.path, file.reason] for file in files]
    table = Table(f"Skipped files of {name}", columns, rows, f"{first} with the reason.")
    return [Fold(f"Files that could not be used ({count:,})", [table])]
