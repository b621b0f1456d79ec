"""The table of responses, its matrix and its answers."""

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.responses import COLUMNS, make_responses
from raylab.core.errors import DataError


def frame(columns: str, *rows: tuple[object, ...]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=columns.split())


def test_scores_are_averaged_over_generations_runs_and_epochs() -> None:
    rows = frame(
        "model item score run epoch generation",
        ("b", "i2", 1.0, 1, 1, "x"),
        ("b", "i2", 0.5, 1, 2, "x"),
        ("b", "i2", 0.0, 2, 1, "y"),
        ("a", "i1", 0.0, 1, 1, "x"),
        ("a", "i2", 1.0, 1, 1, "x"),
    )
    for table in (rows, rows.astype({"model": "category"})):
        responses = make_responses(table.assign(weight=[1.0, 1.0, 1.0, 2.0, 1.0]))
        assert tuple(responses.table) == COLUMNS
        matrix = responses.matrix
        assert (matrix.models, matrix.items) == (("a", "b"), ("i1", "i2"))
        np.testing.assert_array_equal(matrix.scores, [[0.0, 1.0], [np.nan, 0.5]])
        np.testing.assert_array_equal(matrix.means, [1 / 3, 0.5])


def test_strata_are_groups_within_tasks_and_clusters_only_where_declared() -> None:
    rows = frame(
        "model item task group cluster score",
        ("a", "i1", "t", "g", "", 1),
        ("a", "i2", "u", "g", "p", 1),
        ("a", "i3", "t", "g", "p", 1),
        ("a", "i4", "t", "", "", 1),
    )
    matrix = make_responses(rows).matrix
    assert matrix.strata[0] == matrix.strata[2] and len(set(matrix.strata)) == 3
    assert matrix.clusters[1] == matrix.clusters[2] and len(set(matrix.clusters)) == 3
    assert len(set(make_responses(rows.drop(columns="cluster")).matrix.clusters)) == 4


def test_answers_are_compared_by_what_they_say() -> None:
    rows = frame(
        "model item score answer",
        *(("a", "i1", 1, "(A)"), ("b", "i1", 1, "a."), ("c", "i1", 0, " B "), ("d", "i1", 0, "")),
        *(("a", "i2", 0, "1,000"), ("b", "i2", 1, "$1000.00"), ("c", "i2", 0, "big  Number")),
        *(("a", "i3", 1, "Paris"), ("b", "i3", 0, "Rome"), ("b", "i3", 0, "Oslo")),
        ("b", "i3", 0, "oslo"),
    )
    items = pd.DataFrame({"target": ["A", "1000", "The capital, Paris"]}, ["i1", "i2", "i3"])
    answers = make_responses(rows, items).answers
    codes, names = answers.codes, answers.names
    assert codes[0, 0] == codes[1, 0] == answers.keys[0] != codes[2, 0]
    assert names[codes[2, 0]] == " B " and codes[3, 0] == -1
    assert codes[0, 1] == codes[1, 1] == answers.keys[1] != codes[2, 1]
    # The commonest answer of a model counts, and the right one where no model names the target.
    assert names[codes[1, 2]].casefold() == "oslo" and names[answers.keys[2]] == "Paris"
    assert make_responses(rows).answers.keys.tolist() == [-1, -1, -1]


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="no response of a model can be used"):
        make_responses(frame("model item score"))
