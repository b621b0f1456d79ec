"""Padded batches of pairs of similar length, with their demonstrations.

Every pair is a query. Its demonstrations are drawn from the other demonstration pairs of its
task; a pair with the same input grid as the query is never its demonstration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from raylab.arc.data.tasks import PAD, Grid, Indices, PairStore
from raylab.core.errors import ConfigError

MISSING = -1
LENGTH_QUANTUM = 32
BUDGET_CORRECTIONS = 3


class Grids(NamedTuple):
    """B grids, row-major, padded to the longest; every cell carries its coordinates."""

    cells: Tensor
    """(B, L) int64: colours 0..9, `PAD` after the last cell."""
    rows: Tensor
    """(B, L) int64: row of each cell, 0 in padding."""
    cols: Tensor
    """(B, L) int64: column of each cell, 0 in padding."""
    sizes: Tensor
    """(B, 2) int64: height and width."""
    padded: bool
    """True if any grid is shorter than L."""

    def as_images(self, values: Tensor) -> Tensor:
        """Lays (B, L) `values` out as (B, H, W) images, `PAD` outside each grid."""
        height, width = (int(side) for side in self.sizes.amax(dim=0))
        # Padding is written to one more place behind each image, which is cut off.
        images = values.new_full((len(values), height * width + 1), PAD)
        inside = self.cells != PAD
        flat = torch.where(inside, self.rows * width + self.cols, height * width)
        images.scatter_(1, flat, torch.where(inside, values, PAD))
        return images[:, :-1].view(len(values), height, width)

    def arrays(self) -> Iterator[Grid]:
        cells = self.cells.cpu().numpy().astype(np.uint8)
        for row, (height, width) in zip(cells, self.sizes.tolist(), strict=True):
            yield row[: height * width].reshape(height, width)

    def select(self, index: Tensor) -> "Grids":
        """Returns the grids at (N,) `index`, at least one, padded to their own longest."""
        lengths = self.sizes[index].prod(dim=1)
        longest = int(lengths.max())
        cells, rows, cols = (tensor[index, :longest] for tensor in self[:3])
        padded = bool((lengths < longest).any())
        return Grids(cells, rows, cols, self.sizes[index], padded)


class Batch(NamedTuple):
    """B queries with the distinct demonstration pairs they refer to."""

    source: Grids
    target: Grids
    demo_inputs: Grids
    """P distinct demonstration pairs."""
    demo_outputs: Grids
    demo_index: Tensor
    """(B, K) int64: indices of the P pairs, `MISSING` where a task has too few."""
    tasks: Tensor
    """(B,) int64: position of each query's task in the store."""
    pairs: Tensor
    """(B,) int64: position of each query's pair in the store."""

    @property
    def without_outputs(self) -> "Batch":
        """The batch with targets that have no cells and no size, as a model answers it."""
        none = self.target.cells[:, :0]
        return self._replace(
            target=Grids(none, none, none, torch.zeros_like(self.target.sizes), padded=False)
        )

    def select(self, index: Tensor) -> "Batch":
        """Returns the queries at (N,) `index`, with all demonstrations."""
        return self._replace(
            source=self.source.select(index),
            target=self.target.select(index),
            demo_index=self.demo_index[index],
            tasks=self.tasks[index],
            pairs=self.pairs[index],
        )

    def to(self, device: torch.device) -> "Batch":
        """Copies the batch to a device; the copy is asynchronous for pinned memory."""
        return Batch(*(_move(value, device) for value in self))


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Grids):
        return Grids(*(_move(field, device) for field in value))
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=device.type == "cuda")
    return value


class Draw(NamedTuple):
    """The random choices that determine a batch."""

    pairs: Indices
    demonstrations: Indices
    """(B, K) pair indices or `MISSING`."""
    colours: Indices | None = None
    """(tasks, 10) colour permutation of each task of the store, or None."""
    symmetries: Indices | None = None
    """(tasks,) symmetry of each task of the store, as in `Redrawing`, or None."""


def build_batch(store: PairStore, draw: Draw) -> Batch:
    """Returns the batch of a draw from the store."""
    present = draw.demonstrations != MISSING
    distinct, inverse = np.unique(draw.demonstrations[present], return_inverse=True)
    index = np.full(draw.demonstrations.shape, MISSING, dtype=np.int64)
    index[present] = inverse
    source, target, demo_inputs, demo_outputs = (
        pad_grids(store, 2 * pairs + side, draw.colours, draw.symmetries)
        for pairs in (draw.pairs, distinct)
        for side in (0, 1)
    )
    return Batch(
        source,
        target,
        demo_inputs,
        demo_outputs,
        demo_index=torch.from_numpy(index),
        tasks=torch.from_numpy(store.task_of[draw.pairs]),
        pairs=torch.from_numpy(draw.pairs),
    )


def pad_grids(
    store: PairStore,
    grids: Indices,
    colours: Indices | None = None,
    symmetries: Indices | None = None,
) -> Grids:
    """Returns the grids of the store at these indices, padded to the longest.

    The (tasks, 10) colours and (tasks,) symmetries redraw the grids of each task as
    `Redrawing.apply` does.
    """
    sizes, tasks = store.sizes[grids], store.task_of[grids // 2]
    height, width = sizes[:, :1], sizes[:, 1:]
    symmetry = np.zeros_like(width) if symmetries is None else symmetries[tasks, None]
    quarter = symmetry % 4
    # A turned grid's rows are its source's rows or, after an odd number of quarter turns and
    # transpositions, its columns; the source may be read from below and from the right.
    across = (quarter % 2 == 1) != (symmetry >= 4)
    up, left = quarter >= 2, (quarter == 1) | (quarter == 2)
    down, right = np.where(up, -width, width), np.where(left, -1, 1)
    first = store.offsets[grids, None] + up * (height - 1) * width + left * (width - 1)
    sizes = np.where(across, sizes[:, ::-1], sizes)
    lengths = sizes.prod(axis=1)
    positions = np.arange(int(lengths.max(initial=1)))
    inside = positions < lengths[:, None]
    rows, cols = (
        np.where(inside, places, 0) for places in np.divmod(positions, sizes[:, 1:].clip(min=1))
    )
    source = first + rows * np.where(across, right, down) + cols * np.where(across, down, right)
    # Places in padding may lie outside the store.
    cells = store.cells[np.where(inside, source, 0)].astype(np.int64)
    if colours is not None:
        cells = np.take_along_axis(colours[tasks], cells, axis=1)
    return Grids(
        cells=torch.from_numpy(np.where(inside, cells, PAD)),
        rows=torch.from_numpy(rows),
        cols=torch.from_numpy(cols),
        sizes=torch.from_numpy(sizes),
        padded=not bool(inside.all()),
    )


def demonstration_table(
    store: PairStore, pairs: Indices, count: int, rng: np.random.Generator | None
) -> Indices:
    """Returns the demonstrations of each pair, (len(pairs), count) pair indices or `MISSING`.

    All queries of a task prefer the same demonstrations, so that a batch has few distinct ones:
    the first ones, or random ones if there is an `rng`.
    """
    table = np.full((len(pairs), count), MISSING, dtype=np.int64)
    tasks = store.task_of[pairs]
    for task in np.unique(tasks):
        order = store.demonstrations[task]
        if rng is not None:
            order = rng.permutation(order)
        queries = np.flatnonzero(tasks == task)
        other = store.input_of[order] != store.input_of[pairs[queries], None]
        # The place of each candidate among those that the query may see.
        rank = np.where(other, other.cumsum(axis=1) - 1, count)
        query, candidate = np.nonzero(rank < count)
        table[queries[query], rank[query, candidate]] = order[candidate]
    return table


def swap_demonstrations(store: PairStore, pairs: Indices) -> PairStore:
    """Returns a store where each task of these pairs has the demonstrations of another of them.

    The two have demonstrations of like size.
    """
    tasks = np.unique(store.task_of[pairs])
    cells = [store.lengths[store.demonstrations[task]].sum() for task in tasks]
    tasks = tasks[np.argsort(cells, kind="stable")]
    # Up in steps of two and down again, so that the smallest does not get those of the largest.
    givers = np.concatenate((tasks[::2], tasks[1::2][::-1]))
    shown = list(store.demonstrations)
    for task, giver in zip(givers, np.roll(givers, 1), strict=True):
        shown[task] = store.demonstrations[giver]
    return replace(store, demonstrations=tuple(shown))


def cut_batches(lengths: Indices, token_budget: float) -> list[slice]:
    """Cuts (N, 2) sorted `lengths` into runs whose padded tokens stay within the budget.

    A run holds at least one sample, however long.
    """
    runs: list[slice] = []
    start, longest = 0, np.zeros(2, dtype=np.int64)
    for index, length in enumerate(lengths):
        longest = np.maximum(longest, length)
        if index > start and longest.sum() * (index + 1 - start) > token_budget:
            runs.append(slice(start, index))
            start, longest = index, length
    runs.append(slice(start, len(lengths)))
    return runs


def even_out(runs: Sequence[slice], count: int, samples: int) -> list[slice]:
    """Splits the largest runs to a multiple of `count`; joins the smallest if samples are few."""
    runs = list(runs)
    wanted = -(-len(runs) // count) * count
    # A run needs a sample.
    if wanted > samples:
        wanted -= count
    while len(runs) < wanted:
        at = max(range(len(runs)), key=lambda i: runs[i].stop - runs[i].start)
        start, stop = runs[at].start, runs[at].stop
        middle = (start + stop) // 2
        runs[at : at + 1] = [slice(start, middle), slice(middle, stop)]
    while len(runs) > wanted:
        at = min(range(len(runs) - 1), key=lambda i: runs[i + 1].stop - runs[i].start)
        runs[at : at + 2] = [slice(runs[at].start, runs[at + 1].stop)]
    return runs


def plan_runs(
    store: PairStore, pairs: Indices, size: float, multiple: int
) -> tuple[Indices, Indices, list[slice]]:
    """Cuts pairs into runs of similar length, a multiple of `multiple`, of about `size` pairs each.

    Returns:
        The pairs by length, their (N, 2) lengths in steps of `LENGTH_QUANTUM`, and the runs.
    """
    # An output that is missing counts as a cell, which is what padding it takes.
    quanta = -(-store.lengths[pairs].clip(min=1) // LENGTH_QUANTUM)
    order = np.lexsort((quanta[:, 1], quanta[:, 0]))
    lengths = quanta[order] * LENGTH_QUANTUM
    # The token budget that gives about len(pairs) / size runs is approached step by step.
    budget = size * float(lengths.sum(axis=1).mean())
    runs = cut_batches(lengths, budget)
    for _ in range(BUDGET_CORRECTIONS):
        budget *= len(runs) * size / len(lengths)
        runs = cut_batches(lengths, budget)
    return pairs[order], quanta[order], even_out(runs, multiple, len(pairs))


class BatchPlan(Sampler[Draw], Dataset[Batch]):
    """Batches of similar length for one worker; over all workers, every pair once.

    A batch has as many pairs as fit a token budget, on average about `batch_size`. All workers get
    equally many. The plan is for scoring, which does not depend on the batches; `StepPlan` is for
    training. As a sampler it yields draws, and as a dataset it turns each draw into its batch.
    """

    def __init__(
        self,
        store: PairStore,
        pairs: Indices,
        *,
        batch_size: int,
        demonstrations: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Plans `pairs`, one or more for each worker, for worker `rank` of `world`."""
        if len(pairs) < world:
            raise ConfigError(
                f"{len(pairs)} pairs cannot be shared by cluster.workers={world}: "
                "use fewer workers or more tasks"
            )
        self.store, self.demonstrations = store, demonstrations
        self.pairs, _, runs = plan_runs(store, pairs, batch_size, world)
        # Workers take neighbours in length, so that their loads are balanced.
        self.runs = runs[rank::world]

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Draw]:
        table = demonstration_table(self.store, self.pairs, self.demonstrations, None)
        for run in self.runs:
            yield Draw(self.pairs[run], table[run])

    def __getitem__(self, draw: Draw) -> Batch:
        return build_batch(self.store, draw)

    def batches(self) -> Iterator[Batch]:
        """Yields the batches of this worker, in order."""
        return map(self.__getitem__, self)


def planned_loader(plan: Any, *, processes: int = 0) -> DataLoader[Any]:
    """Returns a loader of what a plan draws, built in `processes` worker processes if > 0."""
    return DataLoader(
        plan,
        sampler=plan,
        batch_size=None,
        num_workers=processes,
        persistent_workers=processes > 0,
        pin_memory=torch.cuda.is_available(),
        # A private generator: creating an iterator consumes randomness, which dropout must not see.
        generator=torch.Generator(),
    )
