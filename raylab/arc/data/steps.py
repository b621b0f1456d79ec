"""Optimiser steps in which all target cells have the same weight.

A step consists of several runs of pairs. The pairs of a run have similar lengths and come from a
few tasks; those of a step come from many. A step is computed in batches, ordered by length and cut
where padding costs least. Its loss is the sum over all target cells, divided by a constant, the
mean number of target cells of a step. With a mean over each step instead, cells in steps with few
cells would weigh more.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from raylab.arc.config.sections import Demonstrations, TrainingConfig
from raylab.arc.data.batching import Batch, Draw, build_batch, demonstration_table, plan_runs
from raylab.arc.data.tasks import COLOURS, SYMMETRIES, Indices, PairStore

RUN_PAIRS = 8
"""Mean pairs of a run. With fewer, a step mixes more lengths."""
CPU_BATCH_TOKENS = 4_800
GPU_BATCH_TOKENS = 65_536
"""Most tokens of a batch, padding and the cells of both grids of its pairs included."""
CPU_BATCH_COST = 150
GPU_BATCH_COST = 16_384
"""Cost of one more batch, in tokens of padding; a GPU is faster with few large batches."""
BLOCK_PAIRS = 2
"""Mean pairs of a block, which has one task and shares its demonstrations.

Larger blocks need fewer demonstrations, but give a step fewer tasks.
"""


class TrainingStep(NamedTuple):
    """The batches of one worker in a step, and the divisors of their summed losses."""

    batches: Sequence[Batch]
    cells: float
    """Target cells of a worker in a step, mean over steps and workers."""
    grids: float
    """Pairs of a worker in a step, mean over steps and workers."""

    def to(self, device: torch.device) -> "TrainingStep":
        return self._replace(batches=[batch.to(device) for batch in self.batches])


@dataclass(frozen=True)
class Augmentation:
    """Random changes of the pairs in training; validation has none.

    In a step, all grids of a task have the same permutation of colours and the same symmetry. Both
    keep the number of cells, and so the weight of each.
    """

    colours: Literal["none", "all", "all_but_0"] = "none"
    symmetries: bool = False
    demonstrations: Demonstrations = "epoch"

    @classmethod
    def of(cls, training: TrainingConfig, *, relabelled: bool) -> "Augmentation":
        """Returns the augmentation of a training; `relabelled` is the default of its model."""
        colours = training.augment_colours
        if colours == "model":
            colours = "all" if relabelled else "none"
        return cls(colours, training.augment_symmetries, training.augment_demonstrations)


AS_THEY_ARE = Augmentation()


def cheapest_cuts(lengths: Indices, token_budget: int, batch_cost: int) -> list[slice]:
    """Cuts (N, 2) `lengths` into runs at the least cost: padded tokens, and `batch_cost` a run.

    No run exceeds the budget, except a run of a single sample. Dynamic programming finds the
    cheapest start for each possible end, as in the line breaking of Knuth and Plass 1981.
    """
    costs = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        longest = np.maximum.accumulate(lengths[:end][::-1], axis=0).sum(axis=1)
        tokens = longest * np.arange(1, end + 1)
        # A sample that exceeds the budget has a run of its own.
        tokens = tokens[: max(1, np.searchsorted(tokens, token_budget, side="right"))]
        totals = costs[:end][::-1][: len(tokens)] + tokens
        starts[end] = end - 1 - totals.argmin()
        costs[end] = totals.min() + batch_cost
    runs: list[slice] = []
    end = len(lengths)
    while end:
        runs.append(slice(int(starts[end]), end))
        end = int(starts[end])
    return runs[::-1]


class StepPlan(Sampler[tuple[Draw, ...]], Dataset[TrainingStep]):
    """The training steps of one worker; over all workers, every pair once per epoch.

    A step has about `batch_size` pairs over all workers. It depends on (seed, epoch), not on the
    workers: its runs are cut, into `pieces` each, and dealt out. As a sampler the plan yields the
    draws of each step, none if there are fewer pieces than workers, and as a dataset it turns them
    into the step.
    """

    def __init__(
        self,
        store: PairStore,
        pairs: Indices,
        *,
        batch_size: int,
        demonstrations: int,
        augmentation: Augmentation = AS_THEY_ARE,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Plans `pairs` for worker `rank` of `world`."""
        self.store, self.demonstrations, self.seed = store, demonstrations, seed
        self.augmentation = augmentation
        self.rank, self.world, self.epoch = rank, world, 0
        gpu = torch.cuda.is_available()
        self.batch_tokens = GPU_BATCH_TOKENS if gpu else CPU_BATCH_TOKENS
        self.batch_cost = GPU_BATCH_COST if gpu else CPU_BATCH_COST
        # A run has a pair or more.
        self.step_runs = min(-(-batch_size // RUN_PAIRS), len(pairs))
        """Runs of a step over all workers."""
        self.pieces = world // math.gcd(world, self.step_runs)
        """Pieces of a run, with which all workers get equally many."""
        size = batch_size / self.step_runs
        self.pairs, self.quanta, self.runs = plan_runs(store, pairs, size, self.step_runs)
        steps = len(self) * world
        self.mean_cells = float(store.lengths[self.pairs, 1].sum()) / steps
        self.mean_grids = len(self.pairs) / steps

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch to plan; Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Returns the number of steps in an epoch."""
        return len(self.runs) // self.step_runs

    def __iter__(self) -> Iterator[tuple[Draw, ...]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        pairs = self.pairs[self._shuffle(rng)]
        drawn = self.augmentation.demonstrations
        table = demonstration_table(
            self.store, pairs, self.demonstrations, None if drawn == "first" else rng
        )
        steps = rng.permutation(len(self.runs)).reshape(-1, self.step_runs)
        for step, runs in enumerate(np.sort(steps, axis=1).tolist()):
            pieces: list[tuple[Indices, Indices]] = []
            for turn, run in enumerate(runs):
                queries, shown = pairs[self.runs[run]], table[self.runs[run]]
                if drawn == "batch":
                    own = self._generator(run, 2)
                    shown = demonstration_table(self.store, queries, self.demonstrations, own)
                parts = (np.array_split(each, self.pieces) for each in (queries, shown))
                # Workers take neighbours in length, and in turn the longer pieces, so that their
                # loads are balanced.
                pieces += [*zip(*parts, strict=True)][:: 1 - 2 * (turn % 2)]
            queries, shown = map(np.concatenate, zip(*pieces[self.rank :: self.world], strict=True))
            if not len(queries):
                yield ()
                continue
            cuts = cheapest_cuts(self.store.lengths[queries], self.batch_tokens, self.batch_cost)
            redrawn = self._redraw(step)
            yield tuple(Draw(queries[cut], shown[cut], *redrawn) for cut in cuts)

    def __getitem__(self, draws: tuple[Draw, ...]) -> TrainingStep:
        """Returns the step of `draws`; without any, one pair that weighs nothing."""
        cells, grids = self.mean_cells, self.mean_grids
        if not draws:
            shown = demonstration_table(self.store, self.pairs[:1], self.demonstrations, None)
            draws, cells, grids = (Draw(self.pairs[:1], shown),), math.inf, math.inf
        return TrainingStep([build_batch(self.store, draw) for draw in draws], cells, grids)

    def _redraw(self, step: int) -> tuple[Indices | None, Indices | None]:
        """Returns the (tasks, 10) colour permutations and (tasks,) symmetries of a step."""
        tasks, kept = len(self.store.task_ids), self.augmentation.colours
        colours, symmetries = None, None
        if kept != "none":
            colours = np.tile(np.arange(COLOURS), (tasks, 1))
            moved = colours[:, 1:] if kept == "all_but_0" else colours
            self._generator(step).permuted(moved, axis=1, out=moved)
        if self.augmentation.symmetries:
            symmetries = self._generator(step, 1).integers(SYMMETRIES, size=tasks)
        return colours, symmetries

    def _generator(self, index: int, *purpose: int) -> np.random.Generator:
        # A stream of its own for each step and purpose: all workers draw alike, whatever each drew.
        return np.random.default_rng((self.seed, self.epoch, index, *purpose))

    def _shuffle(self, rng: np.random.Generator) -> Indices:
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
