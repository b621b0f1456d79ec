"""The size rule: against an independent implementation, on real tasks, and in answers."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch

from raylab.arc.config.models import ModelConfig
from raylab.arc.config.sections import DataConfig, Subset
from raylab.arc.data.batching import Batch, Draw, build_batch, demonstration_table
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Grid, Pair, Task, store_pairs
from raylab.arc.metrics import Count
from raylab.arc.models.base import demonstrated_sizes
from raylab.arc.scoring.evaluation import count_batch
from tests.arc.conftest import SMALL_MODELS, batch_of, limit_sides, small_model

Size = tuple[int, int]


def blank(height: int, width: int) -> Grid:
    return np.zeros((height, width), np.uint8)


def size_by_fractions(shown: Sequence[tuple[Size, Size]], query: Size) -> Size:
    """The first of ratio, swap, constant and difference that gives a size; else (0, 0)."""
    candidates: list[tuple[Fraction | int, ...]] = []
    ratios = {tuple(Fraction(o, i) for i, o in zip(*pair, strict=True)) for pair in shown}
    if len(ratios) == 1:
        candidates.append(tuple(side * ratio for side, ratio in zip(query, *ratios, strict=True)))
    if all(output == before[::-1] for before, output in shown):
        candidates.append(query[::-1])
    if len({output for _, output in shown}) == 1:
        candidates.append(shown[0][1])
    differences = {tuple(o - i for i, o in zip(*pair, strict=True)) for pair in shown}
    if len(differences) == 1:
        candidates.append(tuple(map(sum, zip(query, *differences, strict=True))))
    for height, width in candidates if shown else ():
        if all(side in range(1, 31) for side in (height, width)):
            return int(height), int(width)
    return 0, 0


def test_sizes_are_those_of_an_independent_implementation() -> None:
    """Outputs follow one of the baselines, two in turn, or none, over one to five pairs."""
    rng = np.random.default_rng(0)

    def task(number: int) -> Task:
        baselines = rng.choice(5, rng.integers(1, 3))
        sides = rng.integers(1, rng.choice([3, 9, 20]), (rng.integers(1, 6), 2)).tolist()
        pairs: list[Pair] = []
        for height, width in sides:
            # Ratio, swap, constant and difference; the last follows no baseline.
            outputs = (
                (2 * height, 3 * width),
                (width, height),
                (3, 5),
                (height + 4, max(1, width - 1)),
                (-(-height // 2), -(-width // 2)),
            )
            pairs.append(Pair(blank(height, width), blank(*outputs[rng.choice(baselines)])))
        return Task(str(number), tuple(pairs))

    tasks = [task(number) for number in range(400)]
    store = store_pairs(tasks)
    expected: list[Size] = []
    table = demonstration_table(store, store.pairs, 3, None)
    sizes = [tuple(size) for size in store.sizes.tolist()]
    for pair, own in enumerate(table.tolist()):
        shown = [(sizes[2 * at], sizes[2 * at + 1]) for at in own if at >= 0]
        expected.append(size_by_fractions(shown, sizes[2 * pair]))
    actual = demonstrated_sizes(build_batch(store, Draw(store.pairs, table)))
    assert [tuple(size) for size in actual.tolist()] == expected
    assert 100 < sum(size == (0, 0) for size in expected) < len(expected) - 500


@pytest.mark.parametrize(("subset", "right"), [(Subset.TRAINING, 347), (Subset.EVALUATION, 350)])
def test_sizes_of_real_tasks(subset: Subset, right: int) -> None:
    """Tasks of 400 with a right size at all questions, counted by another program too."""
    tasks = load_tasks(DataConfig(subset=subset))
    store = store_pairs(tasks)
    is_question = [[False] * len(t.demonstrations) + [True] * len(t.questions) for t in tasks]
    batch = batch_of(store, store.pairs[np.concatenate(is_question)].tolist(), 10)
    wrong = (demonstrated_sizes(batch.without_outputs) != batch.target.sizes).any(dim=1)
    assert len(tasks) - len(set(batch.tasks[wrong].tolist())) == right


@pytest.fixture
def batch() -> Batch:
    """A query that the baseline gives a size, and one that it does not."""
    doubled = Task("doubled", tuple(Pair(blank(n, 2), blank(2 * n, 4)) for n in (1, 2, 3, 4)))
    mixed = Task("mixed", tuple(Pair(blank(n, n), blank(n * n, 7)) for n in (1, 2, 3, 4)))
    return batch_of(store_pairs([doubled, mixed]), [3, 7], 2)


def test_answers_have_the_size_of_the_rule_and_else_the_predicted_one(
    batch: Batch, small_config: ModelConfig
) -> None:
    """Without demonstrations, or with `size_rule=false`, both sizes are predicted."""
    ruled = small_model(small_config)
    plain = small_model(small_config.model_copy(update={"size_rule": False}))
    shown = batch._replace(demo_index=batch.demo_index[:, : small_config.context_pairs])
    answers, predicted = (
        limit_sides(model, 3).answers(shown.without_outputs) for model in (ruled, plain)
    )
    read = small_config.context_pairs > 0
    assert answers.by_rule.tolist() == [read, False] and not predicted.by_rule.any()
    assert (predicted.grids.sizes <= 3).all()
    assert answers.grids.sizes[1].tolist() == predicted.grids.sizes[1].tolist()
    if read:
        assert answers.grids.sizes[0].tolist() == [8, 4]
    counts = count_batch(ruled, shown)
    assert counts[:, Count.SHAPES_BY_RULE].tolist() == [read, 0]
    assert counts[:, Count.CORRECT_SHAPES].tolist() == [read, 0]


def test_a_size_of_the_rule_counts_as_certain(batch: Batch) -> None:
    model = small_model(SMALL_MODELS["champion"])
    logits = torch.randn(2, 2, 30)
    sizes = model.choose_sizes(batch, logits)
    expected = logits[1].log_softmax(dim=-1).amax(dim=-1).sum()
    assert sizes.log_likelihoods.tolist() == pytest.approx([0.0, float(expected)])
