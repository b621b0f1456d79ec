"""The table of responses and its matrix."""

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.checks.responses import COLUMNS, make_responses
from raylab.core.errors import DataError

ROWS = [
    ("b", "i2", "", "", 1, 1.0, 1.0),
    ("b", "i2", "", "", 2, 0.5, 1.0),
    ("a", "i1", "g", "", 1, 0.0, 2.0),
    ("a", "i2", "", "", 1, 1.0, 1.0),
]


def test_responses_are_made_of_rows_or_of_a_frame() -> None:
    frame = pd.DataFrame(ROWS, columns=list(COLUMNS)).astype({"model": "category"})
    for responses in (make_responses(ROWS, {}, {}), make_responses(frame, {}, {})):
        matrix = responses.matrix
        assert (matrix.models, matrix.items) == (("a", "b"), ("i1", "i2"))
        np.testing.assert_array_equal(matrix.scores, [[0.0, 1.0], [np.nan, 0.75]])
        np.testing.assert_array_equal(matrix.means, [1 / 3, 0.75])
        assert list(responses.table["group"].cat.categories) == ["g", "i2"]


def test_no_rows_are_refused_with_what_was_left_out() -> None:
    with pytest.raises(DataError, match=r"can be used .3 without a score"):
        make_responses([], {}, {"without a score": 3})
