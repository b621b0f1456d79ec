"""The section on noise, and tables of figures."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from markupsafe import Markup
from matplotlib.ticker import PercentFormatter

from raylab.benchmark.checks.noise import Noise
from raylab.benchmark.pages.sentences import describe_component, describe_signal
from raylab.core.page.charts import SERIES, as_svg, drawing, new_figure
from raylab.core.page.page import Block, block
from raylab.core.page.table import Column, Table, figure_cell
from raylab.core.runs.records import Figure, Measure

VALUE = Column("value and 95 % interval", text=True)
NUMBER = Measure("", better=None, form="number")


def noise_blocks(noise: Noise) -> Iterator[Block]:
    """Yields the sources of the variance, and what more of each would gain."""
    if shares := {each.name: each.share for each in noise.components if each.share}:
        yield block("charts", [_variance_bar(shares)], "Shares of the variance of a score.")
    figures = [(c.name, c.variance, describe_component(noise, c)) for c in noise.components]
    figures.append(("signal to noise", noise.signal_to_noise, describe_signal(noise)))
    yield figure_table("Variance", figures)
    if noise.designs:
        yield Table(
            "Larger benchmarks",
            ["size", replace(VALUE, label="standard error"), replace(VALUE, label="reliability")],
            [
                [
                    each.name,
                    *(figure_cell(NUMBER, f) for f in (each.standard_error, each.reliability)),
                ]
                for each in noise.designs
            ],
            "A model's mean score is off by one standard error. Reliability is the share of the "
            "variance of models' means that comes from the models.",
        )


def figure_table(
    title: str, rows: Iterable[tuple[str, Figure, str]], what: str = "figure"
) -> Table:
    """Returns a table of named figures with their intervals and what they say."""
    return Table(
        title,
        [what, VALUE, Column("what it says", text=True)],
        [[name, figure_cell(NUMBER, figure), sentence] for name, figure, sentence in rows],
    )


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
