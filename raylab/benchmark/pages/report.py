"""The statistics section of a paper, as Markdown and as LaTeX, with the figures filled in.

It answers the recommendations of Miller (Adding Error Bars to Evals, arXiv 2411.00640) and the
points of BetterBench on statistics (Reuel et al., arXiv 2411.12990), or says what the logs lack.
"""

from collections.abc import Iterable, Iterator

from raylab.benchmark.checks.diagnosis import Diagnosis
from raylab.benchmark.pages.models import best_pairs
from raylab.benchmark.pages.pairs import LATEX, as_latex
from raylab.benchmark.pages.sentences import (
    describe_differences,
    describe_forms,
    describe_signal,
    points,
)
from raylab.core.page.table import Cell, Table, share_cell
from raylab.core.printable import join_names, pluralize

MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_<>|[]#"})
"""The characters that mean something else in Markdown."""
MILLER, BETTERBENCH = "Miller 2024", "BetterBench"
MISSING = "Not possible from these logs: "
ANSWER, PROSE = "Here", r"lp{0.35\linewidth}p{0.4\linewidth}"
"""The column of what was done, and the columns in LaTeX of a table that has it."""
REPEATED = 1.005
"""Mean number of responses of a model to an item from which on items count as repeated."""


def statistics_section(diagnosis: Diagnosis) -> Iterator[str | Table]:
    """Yields the methods, the figures, and what was answered of the recommendations."""
    yield from _methods(diagnosis)
    yield Table(
        "Mean scores with standard errors and 95 % intervals",
        ["Model", "Mean", "Standard error", "95 % interval", "Items"],
        [
            [
                mean.model,
                share_cell(mean.mean).text,
                points(mean.error),
                share_cell(mean.mean).small or mean.mean.reason or "-",
                f"{mean.items:,}",
            ]
            for mean in diagnosis.means
        ],
    )
    yield best_pairs(diagnosis.differences)
    yield Table(
        "Recommendations on statistics, and what was done",
        ["Source", "Recommendation", ANSWER],
        [
            *([MILLER, *row] for row in _miller(diagnosis).items()),
            *([BETTERBENCH, *row] for row in _betterbench(diagnosis).items()),
        ],
    )


def as_markdown(blocks: Iterable[str | Table]) -> str:
    """Returns blocks as Markdown, with the tables of GitHub."""
    lines = ["# Statistics"]
    for each in blocks:
        if isinstance(each, str):
            lines += ["", each.translate(MARKDOWN)]
            continue
        head, *rows = _escape(each, MARKDOWN)
        lines += ["", f"**{each.title}.** {each.notes}".strip(), "", f"| {' | '.join(head)} |"]
        lines += [f"|{' --- |' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, ""])


def as_tex(blocks: Iterable[str | Table]) -> str:
    """Returns blocks as a section of LaTeX, for the package booktabs."""
    lines = [r"\section{Statistics}"]
    for each in blocks:
        if isinstance(each, str):
            lines += ["", each.translate(LATEX)]
            continue
        alignment = PROSE if each.head[-1].label == ANSWER else "l" * len(each.head)
        head, *rows = _escape(each, LATEX)
        lines += ["", r"\begin{table}", rf"\caption{{{each.title.translate(LATEX)}}}"]
        lines += [as_latex(alignment, head, rows) + r"\end{table}"]
    return "\n".join([*lines, ""])


def _escape(table: Table, escapes: dict[int, str]) -> Iterator[list[str]]:
    """Yields the texts of the head and of the rows."""
    yield [column.label.translate(escapes) for column in table.head]
    for row in table.rows:
        cells = (Cell(cell) if isinstance(cell, str) else cell for cell in row)
        yield [(cell.text or cell.small).translate(escapes) for cell in cells]


def _methods(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields what was read, and how means and differences were computed."""
    differences = diagnosis.differences
    models, items = pluralize(diagnosis.models, "model"), pluralize(diagnosis.items, "item")
    left = [f"{n:,} {reason}" for reason, n in diagnosis.left_out.items()]
    sentences = [
        f"We have {pluralize(diagnosis.responses, 'response')} of {models} to {items}.",
        *([f"Left out: {join_names(left)}."] if left else []),
        *(f"{sentence}." for sentence in diagnosis.reading.sentences),
    ]
    yield " ".join(sentences)
    clustered = "items vary independently"
    if differences.clusters is not None:
        clustered = (
            f"the {differences.clusters} clusters of items vary independently (CR2 with degrees of "
            "freedom for working independence)"
        )
    yield (
        "Intervals are for the choice of items: tasks and topics are fixed strata, and "
        f"{clustered}. Those of means are Wilson's score intervals, for the effective number of "
        "items. Two models are compared on the items that both answered, by McNemar's exact test "
        "with the interval of Bonett and Price (2012) where answers are right or wrong, else by "
        "the t-test of their paired differences; p-values are adjusted for all "
        f"{pluralize(differences.pairs, 'pair')} (Holm)."
    )
    yield describe_differences(differences)


def _miller(diagnosis: Diagnosis) -> dict[str, str]:
    pairs, power = diagnosis.differences, diagnosis.differences.smallest
    errors = [mean.error for mean in diagnosis.means if mean.error is not None]
    spread = f"{100 * min(errors):.1f} to {points(max(errors))}." if errors else ""
    paired = f"{pairs.apart:,} of {pluralize(pairs.pairs, 'pair')} differ (Holm)."
    detected = f"A difference of {points(power.value)} is detected 80 % of the time."
    unlikely = f"{MISSING}they hold scores of answers, not probabilities."
    return {
        "Standard error of each mean": spread or f"{MISSING}there are too few items.",
        "Clustered errors for related items": _clusters(diagnosis),
        "Repeated answers, to reduce their chance": _repeats(diagnosis),
        "Next-token probabilities in place of samples": unlikely,
        "Paired differences of models": paired if pairs.pairs else f"{MISSING}one model.",
        "Analysis of power": f"{MISSING}{power.reason}." if power.value is None else detected,
    }


def _betterbench(diagnosis: Diagnosis) -> dict[str, str]:
    ceiling, guessing = points(max(1 - diagnosis.means[0].adjusted, 0.0)), diagnosis.chance
    ends = (
        f"Scores lie in [0, 1]. The best model is {ceiling} below the ceiling; all models are "
        f"right on {pluralize(diagnosis.suspects.all_right, 'item')}."
    )
    chance = f"{MISSING}they do not say how many options items have."
    if guessing is not None:
        chance = f"Guessing scores {100 * guessing:.1f} % on average."
    form = f"{MISSING}they hold one form; forms=[first,second] compares two."
    return {
        "Floor and ceiling of the metric": ends,
        "Level of chance": chance,
        "Level of people": f"{MISSING}they hold models.",
        "Sensitivity to the form of the input": describe_forms(diagnosis.forms)
        if diagnosis.forms
        else form,
        "Uncertainty or significance of results": "95 % intervals and adjusted p-values, above.",
        "Results over several runs": _repeats(diagnosis),
    }


def _clusters(diagnosis: Diagnosis) -> str:
    clusters = diagnosis.differences.clusters
    if clusters is None:
        return "No clusters were declared; cluster=KEY names what related items share."
    ratios = [
        mean.error / mean.unclustered
        for mean in diagnosis.means
        if mean.error is not None and mean.unclustered
    ]
    widest = f", which changes errors by a factor of up to {max(ratios):.2f}" if ratios else ""
    return f"{clusters:,} clusters{widest}."


def _repeats(diagnosis: Diagnosis) -> str:
    repeats = diagnosis.responses / sum(mean.items for mean in diagnosis.means)
    if repeats < REPEATED:
        return f"{MISSING}each model answered each item once."
    return f"{repeats:.2g} responses to an item, on average. {describe_signal(diagnosis.noise)}"
