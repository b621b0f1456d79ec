"""The diagnosis of a benchmark: its lines in the terminal, and its page."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pandas as pd
from markupsafe import Markup
from matplotlib.ticker import PercentFormatter

from raylab.benchmark.checks.diagnosis import ITEMS, Diagnosed, Diagnosis
from raylab.benchmark.checks.differences import Difference, Differences
from raylab.benchmark.checks.noise import Noise
from raylab.benchmark.checks.stability import Stability
from raylab.benchmark.checks.suspects import Suspects
from raylab.benchmark.figures.record import Quality
from raylab.benchmark.pages.quality import quality_section
from raylab.benchmark.pages.sentences import (
    describe_agreement,
    describe_component,
    describe_prior,
    describe_signal,
    describe_stability,
    describe_suspects,
    verdict,
)
from raylab.core.log import log_line
from raylab.core.page.charts import MUTED, SERIES, as_svg, drawing, new_figure
from raylab.core.page.page import PAGE, Block, Page, Section, block, provenance, write_page
from raylab.core.page.table import (
    BEST,
    Cell,
    Column,
    Row,
    Table,
    figure_cell,
    percent,
    share_cell,
    shorten,
)
from raylab.core.printable import join_names, pluralize
from raylab.core.runs.records import Figure, Measure
from raylab.core.runs.run import Run

DIAGNOSIS_PAGE = "diagnosis.html"
"""The page of a diagnosis in runs whose `report.html` shows something else."""
PAIRS, PAIRS_LATEX = "pairs.csv", "pairs.tex"
"""Names of the tables of pairs in a run directory."""
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)
VALUE = Column("value and 95 % interval", text=True)
NUMBER = Measure("", better=None, form="number")
SHOWN_MODELS = 12
"""Most models in the matrix of pairs: the best ones."""
COMPARED_MODELS = 5
"""Most models in the list of pairs in the report of a run: the best ones."""
FIRST_SUSPECTS, SHOWN_SUSPECTS = 10, 50
"""Most suspects in view, and with those that a click shows."""
MAX_TEXT, MAX_ANSWER = 200, 40
SHOWN_ANSWERS = 4
"""Most different answers to a suspect that are shown."""
DOTS = 5000
"""Most sound items on the map."""


def write_diagnosis(run: Run, diagnosed: Diagnosed, quality: Quality | None = None) -> None:
    """Writes the record, the table of items and the page of a diagnosis, and prints the verdict.

    Args:
        run: The run.
        diagnosed: The diagnosis, and its table of items.
        quality: The four figures, if the page is the run's `report.html`; without them the page is
            `diagnosis.html`.
    """
    page = DIAGNOSIS_PAGE if quality is None else PAGE
    run.write_record(diagnosed.diagnosis)
    (run / ITEMS).write(diagnosed.items.reset_index().to_parquet(index=False))
    differences = diagnosed.diagnosis.differences
    pairs = [*differences.shown, *differences.against]
    (run / PAIRS).write(pair_frame(pairs).to_csv(index=False).encode())
    (run / PAIRS_LATEX).write(as_latex(pairs).encode())
    write_page(run, diagnosis_page(run, diagnosed, quality), page)
    _log(diagnosed.diagnosis)
    for name in (ITEMS, PAIRS, PAIRS_LATEX, page):
        log_line(f"{run / name}", uri=str(run / name))


def verdict_sections(run: Run) -> list[Section]:
    """Returns the section of a report that links to the run's diagnosis, if there is one."""
    diagnosis = run.read_record(Diagnosis)
    if diagnosis is None:
        return []
    link = block("link", DIAGNOSIS_PAGE, f"The diagnosis of {_size(diagnosis)}")
    pairs = pair_table(diagnosis.differences)
    return [Section("diagnosis", "Diagnosis", [*verdict(diagnosis), pairs, link])]


_PAIR_COLUMNS = [
    "model",
    Column("less", text=True),
    "points",
    Column("95 % interval", text=True),
    "p",
    "p (Holm)",
    Column("real", text=True),
]


def _pair_row(pair: Difference) -> Row:
    between = Cell("-", small=pair.reason or "")
    if pair.interval:
        between = Cell(f"{100 * pair.interval[0]:+.1f} to {100 * pair.interval[1]:+.1f}")
    decision = "yes" if pair.apart else "equivalent" if pair.equivalent else "not shown"
    return [
        pair.first,
        pair.second,
        _pair_cell(pair),
        between,
        f"{pair.p:.2g}",
        f"{pair.adjusted:.2g}",
        decision,
    ]


def pair_table(differences: Differences) -> Table:
    """Returns the differences of the best models, pair by pair, with their intervals."""
    best = {rank.model for rank in differences.ranks[:COMPARED_MODELS]}
    return Table(
        "Differences between models",
        _PAIR_COLUMNS,
        [_pair_row(pair) for pair in differences.shown if {pair.first, pair.second} <= best],
        "Points by which a model lies above another on the items that both answered. The interval "
        "is for one pair alone; a difference is real at the 5 % level for all pairs (Holm).",
    )


def pair_frame(pairs: Iterable[Difference]) -> pd.DataFrame:
    """Returns pairs, a row each, with the fields of `Difference`.

    The interval is in the columns `low` and `high`.
    """
    rows = [
        pair.model_dump(exclude={"interval"})
        | dict(zip(("low", "high"), pair.interval or (None, None), strict=True))
        for pair in pairs
    ]
    columns = [name for name in Difference.model_fields if name != "interval"]
    return pd.DataFrame(rows, columns=[*columns, "low", "high"])


def as_latex(pairs: Iterable[Difference]) -> str:
    """Returns pairs as a table of LaTeX for the package booktabs, differences in points."""
    lines = [
        r"\begin{tabular}{llrrrr}",
        r"\toprule",
        r"Model & Less & Points & 95\,\% interval & $p$ & $p$ (Holm) \\",
        r"\midrule",
    ]
    for pair in pairs:
        first, second = (name.translate(LATEX) for name in (pair.first, pair.second))
        points = "--" if pair.difference is None else f"${100 * pair.difference:+.1f}$"
        between = "--"
        if pair.interval:
            between = "{:+.1f} to {:+.1f}".format(*(100 * end for end in pair.interval))
        figures = f"{points} & {between} & {pair.p:.3g} & {pair.adjusted:.3g}"
        lines.append(rf"{first} & {second} & {figures} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _log(diagnosis: Diagnosis) -> None:
    """Logs the verdict and the numbers of responses left out."""
    log_line(f"\ndiagnosis of {_size(diagnosis)}")
    for sentence in verdict(diagnosis):
        log_line(f"  {sentence}")
    for reason, count in diagnosis.left_out.items():
        own = [
            f"{model} {counts[reason]:,}"
            for model, counts in diagnosis.reading.left_out.items()
            if reason in counts
        ]
        models = f" ({join_names(own)})" if own else ""
        log_line(f"  left out: {count:,} {reason}{models}", count=count, reason=reason)


def diagnosis_page(run: Run, diagnosed: Diagnosed, quality: Quality | None) -> Page:
    """Returns the page of a diagnosis, with the four figures if there are any."""
    diagnosis, items = diagnosed
    figures = [] if quality is None else [quality_section(0, run.record.name, quality)]
    differences = list(_differences(diagnosis.differences))
    return Page(
        "benchmark quality",
        run.record.name,
        str(run),
        list(verdict(diagnosis)),
        [
            Section("models", "How good the models are", list(_models(diagnosis))),
            Section("differences", "Which differences are real", differences),
            Section("noise", "Where noise comes from", _noise(diagnosis.noise)),
            Section("items", "Which items are suspect", list(_items(diagnosis, items))),
            Section("stability", "How stable the ranking is", list(_stability(diagnosis))),
            *_priors(diagnosis),
            Section("responses", "Responses", _responses(diagnosis)),
            *figures,
            provenance(str(run), run.record),
        ],
    )


def _size(diagnosis: Diagnosis) -> str:
    counts = {"model": diagnosis.models, "item": diagnosis.items, "response": diagnosis.responses}
    models, items, responses = (pluralize(count, noun) for noun, count in counts.items())
    return f"{models} on {items}, {responses}"


def _figures(title: str, rows: Iterable[tuple[str, Figure, str]]) -> Table:
    """Returns a table of figures with their intervals and what they say."""
    return Table(
        title,
        ["figure", VALUE, Column("what it says", text=True)],
        [[name, figure_cell(NUMBER, figure), sentence] for name, figure, sentence in rows],
    )


def _differences(differences: Differences) -> Iterator[Table]:
    models = [rank.model for rank in differences.ranks[:SHOWN_MODELS]]
    if len(models) > 1:
        pairs = {(pair.first, pair.second): pair for pair in differences.shown}
        yield Table(
            "Differences of pairs",
            ["model", *(f"{place}." for place in range(2, len(models) + 1))],
            [
                [
                    f"{place}. {row}",
                    *(_pair_cell(pairs.get((row, column))) for column in models[1:]),
                ]
                for place, row in enumerate(models, 1)
            ],
            "Points by which a model lies above each model below it, on the items that both "
            "answered; bold if the difference is real at the 5 % level for all pairs (Holm).",
            dense=True,
        )
    if differences.baseline is not None:
        yield Table(
            f"Models compared with {differences.baseline}",
            _PAIR_COLUMNS,
            [_pair_row(pair) for pair in differences.against],
            "Points by which a model lies above the baseline; a difference is real at the 5 % "
            "level for these comparisons (Holm).",
        )
    if differences.curve:
        yield Table(
            "Items and what they detect",
            [Column("items"), "points"],
            [
                [
                    f"{point.items:,}",
                    "-" if point.difference is None else f"{100 * point.difference:.1f}",
                ]
                for point in differences.curve
            ],
            "The difference that a typical pair must have to be found real 80 % of the time.",
        )


def _models(diagnosis: Diagnosis) -> Iterator[Table]:
    differences, errors = diagnosis.differences, ["standard error"]
    if differences.clusters is not None:
        errors.append("without clusters")
    yield Table(
        "Models",
        [
            "model",
            Column("mean score and 95 % interval", text=True),
            *errors,
            "items",
            "rank",
            Column("possible ranks", text=True),
        ],
        [
            [
                rank.model,
                share_cell(mean.mean),
                *(percent(error) for error in (mean.error, mean.unclustered)[: len(errors)]),
                f"{mean.items:,}",
                str(rank.rank),
                f"{rank.low} to {rank.high}",
            ]
            for mean, rank in zip(diagnosis.means, differences.ranks, strict=True)
        ],
        "For 95 % of benchmarks, the possible ranks contain the true ranks of all models.",
    )
    models = [rank.model for rank in differences.ranks[:SHOWN_MODELS]]
    if len(diagnosis.slices) > 1:
        yield Table(
            "Results by task and topic",
            ["task", "items", *models],
            [
                [
                    f"{part.task}: {part.topic}"
                    if part.task and part.topic
                    else part.task or part.topic,
                    f"{part.items:,}",
                    *(share_cell(part.means[m]) if m in part.means else "-" for m in models),
                ]
                for part in diagnosis.slices
            ],
            "Mean scores of the best models, with 95 % intervals.",
            dense=True,
        )


def _pair_cell(pair: Difference | None) -> Cell:
    if pair is None or pair.difference is None:
        return Cell("")
    text = f"{100 * pair.difference:+.1f}"
    return Cell(text, look=BEST) if pair.apart else Cell(text)


def _noise(noise: Noise) -> list[Block]:
    shares = {component.name: component.share for component in noise.components if component.share}
    drawn = [_variance_bar(shares)] if shares else []
    figures = [
        (component.name, component.variance, describe_component(noise, component))
        for component in noise.components
    ]
    figures.append(("signal to noise", noise.signal_to_noise, describe_signal(noise)))
    designs = Table(
        "Larger benchmarks",
        ["size", *(replace(VALUE, label=label) for label in ("standard error", "reliability"))],
        [
            [
                design.name,
                figure_cell(NUMBER, design.standard_error),
                figure_cell(NUMBER, design.reliability),
            ]
            for design in noise.designs
        ],
        "A model's mean score is off by one standard error. Reliability is the share of the "
        "variance of models' means that comes from the models.",
    )
    return [
        block("charts", drawn, "Shares of the variance of a score, by source."),
        _figures("Variance", figures),
        *([designs] if designs.rows else []),
    ]


def _variance_bar(shares: Mapping[str, float]) -> Markup:
    with drawing("variance"):
        figure = new_figure(1.5)
        axes = figure.add_subplot()
        left = 0.0
        for number, (name, share) in enumerate(shares.items()):
            colour = SERIES[number % len(SERIES)]
            axes.barh(0, share, left=left, color=colour, label=name, edgecolor="none")
            left += share
        axes.set_yticks([])
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        figure.legend(loc="outside lower left", ncols=3, labelcolor="linecolor", handlelength=1.0)
        return as_svg(figure, "Shares of the variance of a score")


def _items(diagnosis: Diagnosis, items: pd.DataFrame) -> Iterator[Block]:
    suspects = diagnosis.suspects
    yield describe_suspects(diagnosis)
    yield describe_agreement(suspects)
    if suspects.listed:
        yield _suspect_table(suspects, slice(0, FIRST_SUSPECTS))
    elif suspects.lowest:
        yield Table("Lowest scores", ["item"], [[item] for item in suspects.lowest])
    yield block("charts", [_item_map(items)], "Each dot is an item; crosses are suspects.")
    yield (
        "The lower an item lies, the less it agrees with all others about which models are good. "
        "Weak models do better than strong ones on items below 0."
    )
    if more := suspects.listed[FIRST_SUSPECTS:SHOWN_SUSPECTS]:
        table = _suspect_table(suspects, slice(FIRST_SUSPECTS, SHOWN_SUSPECTS))
        yield block("fold", pluralize(len(more), "more suspect"), [table])


def _suspect_table(suspects: Suspects, places: slice) -> Table:
    texts = ("why", "text", "target", "answers")
    return Table(
        "Suspects",
        ["item", *(Column(label, text=True, page_only=label != "why") for label in texts)],
        [
            [
                suspect.item,
                " ".join(reason.sentence for reason in suspect.reasons),
                shorten(suspect.text, MAX_TEXT),
                shorten(suspect.target, MAX_ANSWER),
                _list_answers(suspect.answers),
            ]
            for suspect in suspects.listed[places]
        ],
        f"Worst first, of {suspects.items:,}; `items.parquet` has all. The last column counts the "
        "models' answers.",
    )


def _list_answers(answers: Mapping[str, int]) -> str:
    """Returns the commonest answers of models with their numbers."""
    shown = list(answers.items())[:SHOWN_ANSWERS]
    listed = [f"{shorten(answer, MAX_ANSWER)} ({count})" for answer, count in shown]
    return ", ".join([*listed, *(["..."] if len(answers) > len(shown) else [])])


def _item_map(items: pd.DataFrame) -> Markup:
    drawn = items.dropna(subset=["item_rest"])
    bad, good = drawn.query("reasons != ''"), drawn.query("reasons == ''")
    good = good.iloc[:: max(1, -(-len(good) // DOTS))]
    with drawing("items"):
        figure = new_figure(3.4)
        axes = figure.add_subplot(xlabel="share of models that fail the item")
        axes.set_title("Correlation of the item with the rest")
        axes.scatter(good["difficulty"], good["item_rest"], s=9, color=MUTED, alpha=0.5)
        axes.scatter(bad["difficulty"], bad["item_rest"], s=26, color=SERIES[1], marker="x")
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.set_ylim(-1.05, 1.05)
        return as_svg(figure, "Items by their difficulty and their correlation with the rest")


def _stability(diagnosis: Diagnosis) -> Iterator[Block]:
    stability, says = diagnosis.stability, describe_stability(diagnosis)
    yield " ".join(says[name] for name in ("tau of halves", "headroom"))
    if stability.curve:
        yield block(
            "charts",
            [_tau_curve(stability)],
            "Agreement of two rankings, each by this number of different items.",
        )
    figures = {
        "tau of halves": stability.tau,
        "alpha": stability.alpha,
        "saturated items": stability.saturated,
        "headroom": stability.headroom,
    }
    yield _figures("Stability", [(name, figure, says[name]) for name, figure in figures.items()])


def _tau_curve(stability: Stability) -> Markup:
    sizes = [point.items for point in stability.curve]
    with drawing("tau"):
        figure = new_figure(3.0)
        axes = figure.add_subplot(xlabel="items")
        axes.set_title("Kendall's tau")
        axes.plot(sizes, [point.tau for point in stability.curve], color=SERIES[0], linewidth=2)
        low, high = zip(*(point.interval for point in stability.curve), strict=True)
        axes.fill_between(sizes, low, high, color=SERIES[0], alpha=0.15, linewidth=0)
        axes.set_ylim(top=1.02)
        return as_svg(figure, "Kendall's tau of two rankings by the number of items")


def _priors(diagnosis: Diagnosis) -> Iterator[Section]:
    if diagnosis.priors:
        rows = [[p.name, figure_cell(NUMBER, p.tau), describe_prior(p)] for p in diagnosis.priors]
        columns = ["benchmark", VALUE, Column("what it says", text=True)]
        table = Table("Kendall's tau of the rankings", columns, rows)
        yield Section("priors", "Agreement with earlier benchmarks", [table])


def _responses(diagnosis: Diagnosis) -> list[Block]:
    blocks: list[Block] = [f"{_size(diagnosis)}."]
    if diagnosis.left_out:
        rows: list[Row] = [[reason, f"{n:,}"] for reason, n in diagnosis.left_out.items()]
        blocks.append(Table("Left out", [Column("reason", text=True), "number"], rows))
        rows = [
            [model, reason, f"{n:,}"]
            for model, counts in diagnosis.reading.left_out.items()
            for reason, n in counts.items()
        ]
        columns = ["model", Column("reason", text=True), "number"]
        blocks.append(Table("Responses left out by model", columns, rows))
    return [*blocks, block("notes", diagnosis.reading.sentences)]
