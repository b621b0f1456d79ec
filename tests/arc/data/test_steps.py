from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from raylab.arc.config.sections import DataConfig
from raylab.arc.data import steps as steps_module
from raylab.arc.data.batching import Draw, build_batch, planned_loader
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.steps import Augmentation, StepPlan, cheapest_cuts
from raylab.arc.data.tasks import IDENTITY, Pair, PairStore, Redrawing, Task, store_pairs
from tests.arc.conftest import make_tasks


def plan_of(store: PairStore, *, epoch: int = 0, **options: Any) -> StepPlan:
    chosen = {"pairs": store.pairs, "batch_size": 16, "demonstrations": 2, "seed": 3, **options}
    plan = StepPlan(store, **chosen)
    plan.set_epoch(epoch)
    return plan


def workers(store: PairStore, world: int, **options: Any) -> list[StepPlan]:
    return [plan_of(store, rank=rank, world=world, **options) for rank in range(world)]


def pairs_in(steps: Iterable[Sequence[Draw]]) -> list[int]:
    return [pair for draws in steps for draw in draws for pair in draw.pairs.tolist()]


def samples(store: PairStore, steps: Iterable[Sequence[Draw]]) -> list[Any]:
    """What is drawn for each pair of each step, however its pairs are batched."""
    return [
        sorted(
            (
                pair,
                tuple(shown),
                None if draw.colours is None else tuple(draw.colours[store.task_of[pair]]),
                None if draw.symmetries is None else int(draw.symmetries[store.task_of[pair]]),
            )
            for draw in draws
            for pair, shown in zip(draw.pairs.tolist(), draw.demonstrations, strict=True)
        )
        for draws in steps
    ]


@pytest.fixture(scope="module")
def store() -> PairStore:
    return store_pairs(make_tasks(40, longest_side=12))


@pytest.fixture(scope="module")
def uneven() -> PairStore:
    """Eight pairs of each of 300 tasks, with sides of 1 to 30, some tasks of one size."""
    rng = np.random.default_rng(0)
    cells = np.zeros((30, 30), dtype=np.uint8)

    def pair(low: int, high: int) -> Pair:
        side = rng.integers(low, high, 3)
        return Pair(cells[: side[0], : side[1]], cells[: side[0], : side[2]])

    def task(index: int) -> Task:
        low = int(rng.integers(1, 31))
        return Task(f"{index}", tuple(pair(low, low + 1 + 5 * (index % 3 > 0)) for _ in range(8)))

    return store_pairs([task(index) for index in range(300)])


# The plan


@pytest.mark.parametrize(("world", "batch_size"), [(1, 5), (2, 1), (3, 32)])
def test_every_pair_once_an_epoch_over_all_workers(
    store: PairStore, world: int, batch_size: int
) -> None:
    for epoch in range(2):
        plans = workers(store, world, epoch=epoch, batch_size=batch_size)
        steps = [list(plan) for plan in plans]
        assert [len(own) for own in steps] == [len(plan) for plan in plans]
        assert len({len(own) for own in steps}) == 1
        assert sorted(pair for own in steps for pair in pairs_in(own)) == store.pairs.tolist()


@pytest.mark.parametrize("pairs", range(3, 8))
@pytest.mark.parametrize("batch_size", [2, 32])
@pytest.mark.parametrize("world", [2, 8])
def test_few_pairs_are_shared_by_many_workers(pairs: int, batch_size: int, world: int) -> None:
    store = store_pairs(make_tasks(1, demonstrations=pairs, questions=0))
    steps = [list(plan) for plan in workers(store, world, batch_size=batch_size)]
    assert len({len(own) for own in steps}) == 1
    assert sorted(pair for own in steps for pair in pairs_in(own)) == store.pairs.tolist()


@pytest.mark.parametrize("demonstrations", ["epoch", "batch"])
@pytest.mark.parametrize("batch_size", [7, 16, 32])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_any_number_of_workers_trains_the_steps_of_one(
    store: PairStore, world: int, batch_size: int, demonstrations: Any
) -> None:
    options = {"augmentation": Augmentation("all", True, demonstrations), "batch_size": batch_size}
    alone, plans = plan_of(store, **options), workers(store, world, **options)
    steps = [*zip(*plans, strict=True)]
    together = [[draw for draws in step for draw in draws] for step in steps]
    assert samples(store, together) == samples(store, alone)
    # The mean over workers of their losses is the sum over the cells, and the grids, of a step,
    # each over the mean number of them in a step.
    cell, grid = len(steps) / store.lengths[:, 1].sum(), len(steps) / len(store.pairs)
    for step in steps:
        weights = dict[int, tuple[float, float]]()
        for plan, draws in zip(plans, step, strict=True):
            own = plan[draws]
            assert own.batches
            if not draws:
                assert own.cells == own.grids == np.inf
                continue
            pairs = [pair for batch in own.batches for pair in batch.pairs.tolist()]
            weights |= dict.fromkeys(pairs, (1 / world / own.cells, 1 / world / own.grids))
        assert sorted(weights) == sorted(pairs_in(step))
        assert np.allclose([*weights.values()], (cell, grid))


def test_batches_hold_few_tokens_and_change_no_step(
    uneven: PairStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"augmentation": Augmentation("all", True, "batch"), "batch_size": 32}
    large = plan_of(uneven, **options)
    monkeypatch.setattr(steps_module, "CPU_BATCH_TOKENS", 1_000)
    monkeypatch.setattr(steps_module, "GPU_BATCH_TOKENS", 1_000)
    small = plan_of(uneven, **options)
    assert samples(uneven, large) == samples(uneven, small)
    for draw in (draw for draws in small for draw in draws):
        longest = uneven.lengths[draw.pairs].max(axis=0)
        assert len(draw.pairs) == 1 or longest.sum() * len(draw.pairs) <= 1_000


def test_batches_hold_little_padding(uneven: PairStore) -> None:
    draws = [draw for draws in plan_of(uneven, batch_size=32) for draw in draws]
    padded = sum(len(draw.pairs) * uneven.lengths[draw.pairs].max(axis=0).sum() for draw in draws)
    assert padded < 1.12 * uneven.lengths.sum()


# Weights


def effective_tasks(store: PairStore, steps: Iterable[Sequence[Draw]]) -> float:
    """The median over steps of the tasks that would weigh as much if they had equal shares."""
    numbers: list[float] = []
    for step in steps:
        pairs = np.array(pairs_in([step]))
        cells = np.bincount(store.task_of[pairs], store.lengths[pairs, 1])
        numbers.append(cells.sum() ** 2 / (cells**2).sum())
    return float(np.median(numbers))


def test_packaged_tasks_are_mixed_nearly_as_at_random() -> None:
    store = store_pairs(load_tasks(DataConfig()))
    plan = plan_of(store, batch_size=32)
    assert 30 <= len(store.task_of) / len(plan) <= 34
    shuffled = np.random.default_rng(0).permutation(store.pairs)
    nothing = np.empty((0, 0), dtype=np.int64)
    random = [(Draw(pairs, nothing, None),) for pairs in np.array_split(shuffled, len(plan))]
    assert effective_tasks(store, plan) >= 0.7 * effective_tasks(store, random)


# The loader


def plain(value: Any) -> Any:
    """The values of all tensors in a tuple or list."""
    if isinstance(value, Tensor):
        return value.tolist()
    return [plain(part) for part in value] if isinstance(value, tuple | list) else value


def test_loader_processes_change_no_step() -> None:
    store = store_pairs(make_tasks())

    plans = [plan_of(store, augmentation=Augmentation(colours="all")) for _ in range(2)]
    here, elsewhere = planned_loader(plans[0]), planned_loader(plans[1], processes=2)
    for epoch in range(2):
        for plan in plans:
            plan.set_epoch(epoch)
        assert len(here) == len(elsewhere) == len(list(here))
        assert plain(list(here)) == plain(list(elsewhere))


# Augmentation


@pytest.mark.parametrize("colours", ["none", "all", "all_but_0"])
def test_a_batch_is_that_of_the_redrawn_tasks(colours: Any) -> None:
    """Demonstrations and queries, inputs and targets of a task are all redrawn alike."""
    tasks = make_tasks()
    store = store_pairs(tasks)
    kinds = set[int]()
    plan = plan_of(store, augmentation=Augmentation(colours, symmetries=True))
    for draws in plan:
        for draw, batch in zip(draws, plan[draws].batches, strict=True):
            assert draw.symmetries is not None
            kinds |= set(draw.symmetries.tolist())
            if draw.colours is None:
                assert colours == "none"
            else:
                moved = draw.colours != np.arange(10)
                assert moved.any() and moved[:, 0].any() == (colours == "all")
            permutations = np.tile(IDENTITY, (9, 1)) if draw.colours is None else draw.colours
            redrawn = [
                Redrawing(permutation.astype(np.uint8), int(symmetry)).task(task)
                for permutation, symmetry, task in zip(
                    permutations, draw.symmetries, tasks, strict=True
                )
            ]
            redrawn_batch = build_batch(store_pairs(redrawn), Draw(draw.pairs, draw.demonstrations))
            assert plain(batch) == plain(redrawn_batch)
    assert len(kinds) == 8


@pytest.mark.parametrize("demonstrations", ["first", "epoch", "batch"])
def test_augmentation_depends_on_seed_and_epoch_alone(
    store: PairStore, demonstrations: Any
) -> None:
    augmentation = Augmentation("all", True, demonstrations)
    alone = samples(store, plan_of(store, augmentation=augmentation))
    assert samples(store, plan_of(store, augmentation=augmentation)) == alone
    assert samples(store, plan_of(store, epoch=1, augmentation=augmentation)) != alone
    assert samples(store, plan_of(store, seed=4, augmentation=augmentation)) != alone
    used = plan_of(store, epoch=5, augmentation=augmentation)
    list(used)
    used.set_epoch(0)
    assert samples(store, used) == alone


def test_demonstrations_are_drawn_as_often_as_is_said() -> None:
    # Questions have no demonstration to leave out: they show what is preferred.
    store = store_pairs(make_tasks(1, demonstrations=6, questions=40))
    questions = {"pairs": np.arange(6, 46), "batch_size": 8}

    def drawn(demonstrations: Any) -> list[set[tuple[int, ...]]]:
        augmentation = Augmentation(demonstrations=demonstrations)
        plans = (plan_of(store, epoch=e, augmentation=augmentation, **questions) for e in (0, 1))
        return [
            {tuple(row) for step in plan for draw in step for row in draw.demonstrations.tolist()}
            for plan in plans
        ]

    assert drawn("first") == [{(0, 1)}, {(0, 1)}]
    one, other = drawn("epoch")
    assert len(one) == len(other) == 1
    assert min(map(len, drawn("batch"))) > 1


@pytest.mark.parametrize("seed", range(8))
def test_no_other_cuts_cost_less(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 30, (8, 2))

    def cost(cuts: Sequence[slice]) -> float:
        tokens = [(cut.stop - cut.start) * lengths[cut].max(axis=0).sum() for cut in cuts]
        sizes = zip(tokens, cuts, strict=True)
        fit = all(token <= 90 or cut.stop == cut.start + 1 for token, cut in sizes)
        return sum(tokens) + 20 * len(cuts) if fit else np.inf

    def all_cuts(start: int) -> Iterator[list[slice]]:
        if start == len(lengths):
            yield []
        for stop in range(start + 1, len(lengths) + 1):
            yield from ([slice(start, stop), *rest] for rest in all_cuts(stop))

    cuts = cheapest_cuts(lengths, 90, 20)
    assert [place for cut in cuts for place in range(cut.start, cut.stop)] == list(range(8))
    assert cost(cuts) == min(map(cost, all_cuts(0)))
