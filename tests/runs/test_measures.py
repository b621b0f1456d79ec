from typing import Annotated, Any

import pytest

from raylab.runs.records import Measure, Part, meaning_of, measures_of


class Figures(Part):
    share: Annotated[float, Measure("right answers")]
    """Of all
    answers."""
    seconds: Annotated[float, Measure("took", "seconds", "lower")]
    cases: int


@pytest.mark.parametrize(
    ("better", "values", "best"),
    [
        ("higher", [0.1, None, 0.3], 0.3),
        ("lower", [0.1, None, 0.3], 0.1),
        (None, [0.1, 0.3], None),
        ("higher", [0.1, 0.1], None),
        ("higher", [0.1, None], None),
    ],
)
def test_the_best_is_the_one_at_the_good_end(
    better: Any, values: list[float | None], best: float | None
):
    assert Measure("m", better=better).best(values) == best


def test_the_fields_of_a_part_say_what_they_measure():
    assert measures_of(Figures) == {
        "share": Measure("right answers"),
        "seconds": Measure("took", "seconds", "lower"),
    }
    assert meaning_of(Figures, "share") == "Of all answers."
