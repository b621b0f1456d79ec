from typing import Annotated

from raylab.runs.records import Measure, Part, meaning_of, measures_of


class Figures(Part):
    share: Annotated[float, Measure("right answers")]
    """Of all
    answers."""
    seconds: Annotated[float, Measure("took", "seconds", "lower")]
    cases: int


def test_the_fields_of_a_part_say_what_they_measure():
    assert measures_of(Figures) == {
        "share": Measure("right answers"),
        "seconds": Measure("took", "seconds", "lower"),
    }
    assert meaning_of(Figures, "share") == "Of all answers."
