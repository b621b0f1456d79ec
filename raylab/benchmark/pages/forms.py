"""The section on two forms of a benchmark."""

from collections.abc import Iterator, Sequence

from raylab.benchmark.checks.forms import ChangedItem, Forms, Shift
from raylab.benchmark.pages.noise import NUMBER, VALUE
from raylab.benchmark.pages.pairs import TEST_COLUMNS, test_cells
from raylab.benchmark.pages.sentences import describe_correlation, signed_points
from raylab.core.page.page import Block, block
from raylab.core.page.table import Row, Table, figure_cell
from raylab.core.printable import pluralize
from raylab.core.runs.records import Figure

FIRST_ITEMS = 10
"""Most items in view."""


def form_blocks(forms: Forms) -> Iterator[Block]:
    """Yields the shifts of the models, how alike both forms rank them, and the broken items."""
    yield Table(
        "Shifts to the second form",
        ["model", "items", *TEST_COLUMNS],
        [_shift_row(shift) for shift in (forms.overall, *forms.shifts)],
        "Points by which a model's mean rises on the items that it answered in both forms.",
    )
    correlation = forms.correlation
    figures = {"as measured": Figure(value=correlation.value)}
    if correlation.corrected is not None:
        corrected = Figure(value=correlation.corrected, interval=correlation.interval)
        figures["without noise"] = corrected
    yield Table(
        "Correlation of the models' means",
        ["correlation", VALUE],
        [[name, figure_cell(NUMBER, figure)] for name, figure in figures.items()],
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
                *(item.item, str(item.lost), str(item.won), signed_points(item.change)),
                f"{100 * item.by_chance:.0f} %",
            ]
            for item in items
        ],
        "The last column is the share of items with such a loss, or more, that chance explains, by "
        "the number that gain as much.",
    )


def _shift_row(shift: Shift) -> Row:
    figure, name = shift.shift, shift.model or "mean of all models"
    tested = test_cells(figure.interval, figure.reason, shift.p, shift.adjusted)
    return [name, f"{shift.items:,}", signed_points(figure.value), *tested]
