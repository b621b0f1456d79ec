"""The section on two forms of a benchmark."""

from collections.abc import Iterator, Sequence

from raylab.benchmark.checks.forms import ChangedItem, Forms, Shift
from raylab.benchmark.pages.noise import NUMBER
from raylab.benchmark.pages.sentences import describe_correlation
from raylab.core.page.page import Block, block
from raylab.core.page.table import Cell, Column, Row, Table, figure_cell
from raylab.core.printable import pluralize
from raylab.core.runs.records import Figure

FIRST_ITEMS = 10
"""Most items in view."""


def form_blocks(forms: Forms) -> Iterator[Block]:
    """Yields the shifts of the models, how alike both forms rank them, and the broken items."""
    yield Table(
        "Shifts to the second form",
        ["model", "items", "points", Column("95 % interval", text=True), "p", "p (Holm)"],
        [_shift_row(shift) for shift in (forms.overall, *forms.shifts)],
        "Points by which a model's mean rises on the items that it answered in both forms.",
    )
    rows = [("as measured", Figure(value=forms.correlation.value))]
    if forms.correlation.corrected is not None:
        corrected = forms.correlation.corrected
        without = Figure(value=corrected, interval=forms.correlation.interval)
        rows.append(("without noise", without))
    yield Table(
        "Correlation of the models' means",
        ["correlation", Column("value and 95 % interval", text=True)],
        [[name, figure_cell(NUMBER, figure)] for name, figure in rows],
        describe_correlation(forms),
    )
    yield _item_table(forms.broken[:FIRST_ITEMS])
    if more := forms.broken[FIRST_ITEMS:]:
        yield block("fold", pluralize(len(more), "more item"), [_item_table(more)])


def _item_table(items: Sequence[ChangedItem]) -> Table:
    return Table(
        "Items that lost most in the second form",
        ["item", "models lost", "models won", "points", "by chance"],
        [
            [
                item.item,
                str(item.lost),
                str(item.won),
                f"{100 * item.change:+.1f}",
                f"{100 * item.by_chance:.0f} %",
            ]
            for item in items
        ],
        "The last column is the share of items with such a loss, or more, that chance explains, by "
        "the number that gain as much.",
    )


def _shift_row(shift: Shift) -> Row:
    figure, between = shift.shift, Cell("-", small=shift.shift.reason or "")
    if figure.interval is not None:
        between = Cell("{:+.1f} to {:+.1f}".format(*(100 * end for end in figure.interval)))
    points = "-" if figure.value is None else f"{100 * figure.value:+.1f}"
    name = shift.model or "mean of all models"
    return [name, f"{shift.items:,}", points, between, f"{shift.p:.2g}", f"{shift.adjusted:.2g}"]
