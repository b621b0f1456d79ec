"""Optimiser steps in which all target cells have the same weight.

A step is several batches, each of like lengths and a few tasks, together of many. Its loss is
summed over the target cells of all of them and divided by a constant, the mean number of target
cells of a step. A mean over each step would weigh a cell the more, the fewer cells its step has.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from raylab.arc.data.batching import (
    LENGTH_QUANTUM,
    Batch,
    BatchDataset,
    Draw,
    Indices,
    PairStore,
    batches_of_mean_size,
    check_workers,
    demonstration_table,
    evened,
    length_quanta,
)
from raylab.arc.data.tasks import COLOURS

BATCH_PAIRS = 8
"""Mean pairs of a batch. Fewer hold less padding, but many small batches starve a GPU."""
BLOCK_PAIRS = 2
"""Mean pairs of a block: neighbours of one task in a batch, which share their demonstrations.

Larger blocks need fewer demonstrations, and leave a step with fewer tasks.
"""


class TrainingStep(NamedTuple):
    """The batches of one worker in a step, and what their summed losses are divided by."""

    batches: Sequence[Batch]
    cells: float
    """Target cells of a worker in a step, mean over steps and workers."""
    grids: float
    """Pairs of a worker in a step, mean over steps and workers."""

    def to(self, device: torch.device) -> "TrainingStep":
        """Copies the batches to a device."""
        return self._replace(batches=tuple(batch.to(device) for batch in self.batches))


class StepPlan(Sampler[tuple[Draw, ...]]):
    """The training steps of one worker; over all workers, every pair once per epoch.

    A step has about `batch_size` pairs over all workers. It depends on (seed, epoch) alone: two
    workers train the very steps of one, as long as each has a batch of about `BATCH_PAIRS` in every
    step. Further workers take smaller batches. All have equally many batches in a step.
    """

    def __init__(
        self,
        store: PairStore,
        pairs: Indices,
        *,
        batch_size: int,
        demonstrations: int,
        colour_relabelling: bool = False,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Plans `pairs` for worker `rank` of `world`.

        Raises:
            ConfigError: there are fewer pairs than workers.
        """
        check_workers(pairs, world)
        self.store, self.demonstrations, self.seed = store, demonstrations, seed
        self.colour_relabelling = colour_relabelling
        self.rank, self.world, self.epoch = rank, world, 0
        own = min(-(-batch_size // (world * BATCH_PAIRS)), len(pairs) // world)
        self.batches = own * world
        """Batches of a step over all workers."""
        self.pairs, self.quanta = length_quanta(store, pairs)
        runs = batches_of_mean_size(self.quanta * LENGTH_QUANTUM, batch_size / self.batches)
        self.runs = evened(runs, self.batches, len(pairs))

    @property
    def mean_cells(self) -> float:
        """Target cells of a worker in a step, mean over steps and workers."""
        return float(self.store.lengths[self.pairs, 1].sum()) / (len(self) * self.world)

    @property
    def mean_grids(self) -> float:
        """Pairs of a worker in a step, mean over steps and workers."""
        return len(self.pairs) / (len(self) * self.world)

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch to plan; Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Returns the number of steps in an epoch."""
        return len(self.runs) // self.batches

    def __iter__(self) -> Iterator[tuple[Draw, ...]]:
        """Yields the batches of this worker in each step, in order."""
        rng = np.random.default_rng((self.seed, self.epoch))
        pairs = self.pairs[self._shuffled(rng)]
        table = demonstration_table(self.store, pairs, self.demonstrations, rng)
        steps = rng.permutation(len(self.runs)).reshape(-1, self.batches)
        # Workers take neighbours in length, which balances their load.
        for step in np.sort(steps, axis=1)[:, self.rank :: self.world].tolist():
            yield tuple(
                Draw(pairs[run], table[run], self._colours(index))
                for index, run in ((index, self.runs[index]) for index in step)
            )

    def _shuffled(self, rng: np.random.Generator) -> Indices:
        """Returns an order of the pairs that mixes blocks of pairs of one task and like length."""
        tasks = self.store.task_of[self.pairs]
        order = np.lexsort((rng.random(len(tasks)), tasks, *self.quanta.T[::-1]))
        kinds = np.column_stack((self.quanta, tasks))[order]
        tokens = kinds[:, :2].sum(axis=1)
        block = np.maximum(1, np.round(BLOCK_PAIRS * tokens.mean() / tokens))
        first = np.append(True, (kinds[1:] != kinds[:-1]).any(axis=1))
        place = np.arange(len(kinds)) - np.flatnonzero(first)[first.cumsum() - 1]
        blocks = (first | (place % block == 0)).cumsum() - 1
        shuffled = rng.permutation(blocks[-1] + 1)[blocks]
        return order[np.lexsort((shuffled, *kinds[:, :2].T[::-1]))]

    def _colours(self, batch: int) -> Indices | None:
        """Returns the (tasks, 10) colour permutations of a batch of the epoch."""
        if not self.colour_relabelling:
            return None
        identity = np.tile(np.arange(COLOURS), (len(self.store.task_ids), 1))
        return np.random.default_rng((self.seed, self.epoch, batch)).permuted(identity, axis=1)


class StepDataset(Dataset[TrainingStep]):
    """Dataset that turns the draws of a step into its batches."""

    def __init__(self, plan: StepPlan) -> None:
        """Serves the steps of `plan`; keeps only its store and its means."""
        self.batches = BatchDataset(plan.store)
        self.mean_cells, self.mean_grids = plan.mean_cells, plan.mean_grids

    def __getitem__(self, draws: tuple[Draw, ...]) -> TrainingStep:
        """Returns the step of `draws`."""
        batches = tuple(self.batches[draw] for draw in draws)
        return TrainingStep(batches, self.mean_cells, self.mean_grids)
