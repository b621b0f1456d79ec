"""The baselines, by hand."""

import numpy as np
import pytest

from raylab.arc.baselines import baseline_metrics, count_baselines, forced_answers, free_answers
from raylab.arc.data.tasks import PAD, Task, store_pairs
from raylab.arc.metrics import Count
from raylab.arc.scoring.evaluation import score_baselines
from tests.arc.conftest import batch_of
from tests.arc.tasks import pair

GROWN = pair("12", "122/332")
"""The target reaches beyond the source: three cells more to the right and below."""
SAME = pair("45/54", "45/54")
PLAIN = pair("70", "77")
STORE = store_pairs([Task("a", (GROWN, SAME)), Task("b", (PLAIN,))])


def test_forced_answers_to_unlike_grids_in_one_batch() -> None:
    answers = {
        baseline: own.tolist() for baseline, own in forced_answers(batch_of(STORE, [0, 2])).items()
    }
    assert answers == {
        "copy_source": [[[1, 2, PAD], [PAD, PAD, PAD]], [[7, 0, PAD], [PAD, PAD, PAD]]],
        # The source's first cell, then the target without its last cell, row after row.
        "previous_cell": [[[1, 1, 2], [2, 3, 3]], [[7, 7, PAD], [PAD, PAD, PAD]]],
        "copy_else_previous": [[[1, 2, 2], [2, 3, 3]], [[7, 0, PAD], [PAD, PAD, PAD]]],
    }


def test_counts_by_hand() -> None:
    counts = count_baselines(STORE, np.array([2, 0]))

    def numbers(baseline: str, count: Count) -> list[int]:
        return counts[baseline][:, count].tolist()

    assert numbers("copy_source", Count.CORRECT_CELLS) == [1, 2]
    assert numbers("previous_cell", Count.CORRECT_CELLS) == [2, 3]
    assert numbers("copy_else_previous", Count.CORRECT_CELLS) == [1, 4]
    assert numbers("previous_cell", Count.EXACT) == [1, 0]
    # Free-running, the previous cell repeats 7 in the source's size, which PLAIN is. Of GROWN the
    # only demonstration keeps its size.
    assert numbers("previous_cell", Count.SOLVED) == [1, 0]
    assert numbers("copy_source", Count.SOLVED) == [0, 0]
    assert numbers("copy_else_previous", Count.SOLVED) == [0, 0]
    assert numbers("copy_source", Count.CORRECT_SHAPES) == [1, 0]
    assert numbers("copy_source", Count.SHAPES_BY_RULE) == [0, 1]


def test_free_running_answers_are_in_the_size_of_the_size_rule() -> None:
    # GROWN shows SAME a size of 2 / 1 times 2 by 3 / 2 times 2; PLAIN has no demonstration.
    answers = {
        baseline: own.cells.tolist()
        for baseline, own in free_answers(batch_of(STORE, [1, 2], 2)).items()
    }
    blank = [PAD] * 10
    assert answers == {
        "copy_source": [[4, 5, PAD, 5, 4, *[PAD] * 7], [7, 0, *blank]],
        "previous_cell": [[4] * 12, [7, 7, *blank]],
        "copy_else_previous": [[4, 5, 5, 5, *[4] * 8], [7, 0, *blank]],
    }


def test_metrics_are_of_the_named_pairs_alone() -> None:
    alone, both = (
        baseline_metrics(STORE, np.array(pairs), {})["copy_source"] for pairs in ([1], [0, 1])
    )
    assert alone["cell_accuracy"] == alone["dense_grid_objective"] == 1.0
    assert both["cell_accuracy"] == pytest.approx(6 / 10)
    assert both["grid_accuracy"] == 0.5


def test_scores_are_means_over_the_units() -> None:
    tasks = [Task("a", (SAME,), (GROWN,)), Task("b", (PLAIN,))]
    by_task = score_baselines(tasks, {"a": "a", "b": "b"}, "solve_rate")
    # Copying solves one of two grids of a, none of b; repeating none of a and the one of b.
    assert by_task == {"copy_source": 0.25, "previous_cell": 0.5, "copy_else_previous": 0.25}
    by_group = score_baselines(tasks, {"a": "x", "b": "x"}, "solve_rate")
    assert by_group["copy_source"] == pytest.approx(1 / 3)
