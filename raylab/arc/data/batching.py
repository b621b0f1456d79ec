"""Padded batches of pairs: contiguous arrays, batches of similar length, demonstrations.

Every pair is a query. Its demonstrations are drawn from the other demonstration pairs of its
task; a pair with the same input grid as the query is never its demonstration.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from raylab.arc.data.store import Indices, PairStore
from raylab.arc.data.tasks import PAD
from raylab.errors import ConfigError

MISSING = -1
LENGTH_QUANTUM = 32
BUDGET_CORRECTIONS = 3


class Redrawings(NamedTuple):
    """Colours and symmetries of N redrawings as tensors, to redraw padded batches of N grids."""

    colours: Tensor | None
    """(N, 10) int64: what each colour becomes; None keeps them."""
    symmetries: Tensor | None
    """(N,) int64, 0..7; None keeps all grids as they lie."""

    def select(self, index: Tensor) -> "Redrawings":
        """Returns the redrawings at (M,) `index`."""
        return Redrawings(*(None if part is None else part[index] for part in self))


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
        images = values.new_full((len(values), height * width + 1), PAD)
        inside = self.cells != PAD
        flat = torch.where(inside, self.rows * width + self.cols, height * width)
        images.scatter_(1, flat, torch.where(inside, values, PAD))
        return images[:, :-1].view(len(values), height, width)

    def select(self, index: Tensor) -> "Grids":
        """Returns the grids at (N,) `index`."""
        return Grids(*(tensor[index] for tensor in self[:4]), padded=self.padded)

    def redrawn(self, redrawings: Redrawings) -> "Grids":
        """Returns the B grids, each by its own of B `redrawings`, as `Redrawing.apply` does."""
        cells, rows, cols, sizes, padded = self
        if redrawings.symmetries is not None:
            cells, rows, cols, sizes = _turned(cells, sizes, redrawings.symmetries)
        if redrawings.colours is not None:
            pad = redrawings.colours.new_full((len(cells), 1), PAD)
            cells = torch.cat((redrawings.colours, pad), dim=1).gather(1, cells)
        return Grids(cells, rows, cols, sizes, padded)

    def to(self, device: torch.device) -> "Grids":
        """Copies the grids to a device; the copy is asynchronous for pinned memory."""
        return Grids(*(_moved(tensor, device) for tensor in self[:4]), padded=self.padded)

    def part(self, index: Tensor) -> "Grids":
        """Returns the grids at (N,) `index`, at least one, padded to their own longest."""
        sizes = self.sizes[index]
        lengths = sizes.prod(dim=1)
        longest = int(lengths.max())
        cells, rows, cols = (tensor[index, :longest] for tensor in self[:3])
        return Grids(cells, rows, cols, sizes, padded=bool((lengths < longest).any()))


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
    def posed(self) -> "Batch":
        """The batch as a model that answers is handed it: its targets have no cells and no size."""
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
        """Copies the batch to a device, like `Grids.to`."""
        return Batch(
            source=self.source.to(device),
            target=self.target.to(device),
            demo_inputs=self.demo_inputs.to(device),
            demo_outputs=self.demo_outputs.to(device),
            demo_index=_moved(self.demo_index, device),
            tasks=_moved(self.tasks, device),
            pairs=_moved(self.pairs, device),
        )


def pad_grids(store: PairStore, grids: Indices) -> Grids:
    """Returns the grids of the store at these indices, padded to the longest."""
    sizes = store.sizes[grids]
    lengths = sizes.prod(axis=1)
    width = int(lengths.max(initial=1))
    positions = np.arange(width)
    inside = positions < lengths[:, None]
    rows, cols = np.divmod(positions, sizes[:, 1:].clip(min=1))
    source = np.where(inside, store.offsets[grids][:, None] + positions, 0)
    cells = store.cells[source].astype(np.int64)
    return Grids(
        cells=torch.from_numpy(np.where(inside, cells, PAD)),
        rows=torch.from_numpy(np.where(inside, rows, 0)),
        cols=torch.from_numpy(np.where(inside, cols, 0)),
        sizes=torch.from_numpy(sizes),
        padded=not bool(inside.all()),
    )


def _turned(
    cells: Tensor, sizes: Tensor, symmetries: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns cells, rows, columns and sizes of N grids that are turned by (N,) `symmetries`.

    Args:
        cells: (N, L) cells of the grids, row-major, `PAD` after the last.
        sizes: (N, 2) their heights and widths.
        symmetries: The symmetry of each, as in `Redrawing`.
    """
    height, width = sizes.unbind(dim=1)
    quarter = symmetries % 4
    # A turned grid's rows are its source's rows or, after an odd number of quarter turns and
    # transpositions, its columns; the source may be read from below and from the right.
    across = (quarter % 2 == 1) != (symmetries >= 4)
    up, left = quarter >= 2, (quarter == 1) | (quarter == 2)
    first = torch.where(up, (height - 1) * width, 0) + torch.where(left, width - 1, 0)
    down, right = torch.where(up, -width, width), torch.where(left, -1, 1)
    sizes = torch.where(across[:, None], sizes.flip(1), sizes)
    inside, positions = cells != PAD, torch.arange(cells.shape[1], device=cells.device)
    rows = torch.where(inside, positions // sizes[:, 1:], 0)
    cols = torch.where(inside, positions % sizes[:, 1:], 0)
    source = first[:, None] + rows * torch.where(across, right, down)[:, None]
    source += cols * torch.where(across, down, right)[:, None]
    return torch.where(inside, cells.gather(1, source), PAD), rows, cols, sizes


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.to(device, non_blocking=device.type == "cuda")


def demonstration_table(
    store: PairStore, pairs: Indices, count: int, rng: np.random.Generator | None
) -> Indices:
    """Returns the demonstrations of each pair, (len(pairs), count) pair indices or `MISSING`.

    All queries of a task prefer the same demonstrations, so that a batch holds few distinct ones.
    The order of preference is that of the task, or random if `rng` is given.
    """
    table = np.full((len(pairs), count), MISSING, dtype=np.int64)
    tasks = store.task_of[pairs]
    for task in np.unique(tasks):
        order = store.demonstrations[task]
        if rng is not None:
            order = rng.permutation(order)
        queries = np.flatnonzero(tasks == task)
        other = store.input_of[order] != store.input_of[pairs[queries], None]
        rank = np.where(other, other.cumsum(axis=1) - 1, count)
        query, candidate = np.nonzero(rank < count)
        table[queries[query], rank[query, candidate]] = order[candidate]
    return table


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


def cheapest_cuts(lengths: Indices, token_budget: int, batch_cost: int) -> list[slice]:
    """Cuts (N, 2) `lengths` into runs at the least cost: padded tokens, and `batch_cost` a run.

    No run exceeds the budget, except one of a single sample. Each end of a run is reached from the
    start that is cheapest (Knuth and Plass 1981 break lines so).
    """
    costs = np.zeros(len(lengths) + 1, dtype=np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        longest = np.maximum.accumulate(lengths[:end][::-1], axis=0).sum(axis=1)
        tokens = longest * np.arange(1, end + 1)
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


def batches_of_mean_size(lengths: Indices, batch_size: float) -> list[slice]:
    """Cuts (N, 2) sorted `lengths` under the token budget that gives about N / batch_size runs."""
    budget = batch_size * float(lengths.sum(axis=1).mean())
    runs = cut_batches(lengths, budget)
    for _ in range(BUDGET_CORRECTIONS):
        budget *= len(runs) * batch_size / len(lengths)
        runs = cut_batches(lengths, budget)
    return runs


def evened(runs: Sequence[slice], count: int, samples: int) -> list[slice]:
    """Splits the largest runs to a multiple of `count`; joins the smallest if samples are few."""
    runs = list(runs)
    wanted = -(-len(runs) // count) * count
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


class Draw(NamedTuple):
    """The choices that determine a batch; nothing random is decided later."""

    pairs: Indices
    demonstrations: Indices
    """(B, K) pair indices or `MISSING`."""
    colours: Indices | None = None
    """(tasks, 10) colour permutation of each task of the store, or None."""
    symmetries: Indices | None = None
    """(tasks,) symmetry of each task of the store, as in `Redrawing`, or None."""


def length_quanta(store: PairStore, pairs: Indices) -> tuple[Indices, Indices]:
    """Returns `pairs` sorted by length, and their (N, 2) lengths in steps of `LENGTH_QUANTUM`."""
    # An output that is missing counts as a cell, which is what padding it takes.
    quanta = -(-store.lengths[pairs].clip(min=1) // LENGTH_QUANTUM)
    order = np.lexsort((quanta[:, 1], quanta[:, 0]))
    return pairs[order], quanta[order]


def check_workers(pairs: Indices, world: int) -> None:
    """Checks that every worker can get a pair.

    Raises:
        ConfigError: there are fewer pairs than workers.
    """
    if len(pairs) < world:
        raise ConfigError(
            f"{len(pairs)} pairs cannot be shared by cluster.workers={world}: "
            "use fewer workers or more tasks"
        )


class BatchPlan(Sampler[Draw]):
    """Batches of similar length for one worker; over all workers, every pair once.

    A batch holds as many pairs as fit a token budget, chosen so that a batch has about `batch_size`
    pairs on average. Workers take neighbouring batches, which balances their load, and equally
    many. It is made for scoring, where nothing depends on the batch that a pair is in; `StepPlan`
    is made for training.
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
        """Plans `pairs` for worker `rank` of `world`.

        Raises:
            ConfigError: there are fewer pairs than workers.
        """
        check_workers(pairs, world)
        self.store, self.demonstrations = store, demonstrations
        self.rank, self.world = rank, world
        self.pairs, quanta = length_quanta(store, pairs)
        runs = batches_of_mean_size(quanta * LENGTH_QUANTUM, batch_size)
        self.runs = evened(runs, world, len(pairs))

    def __len__(self) -> int:
        """Returns the number of batches of this worker."""
        return len(self.runs) // self.world

    def __iter__(self) -> Iterator[Draw]:
        """Yields the batches of this worker, in order."""
        table = demonstration_table(self.store, self.pairs, self.demonstrations, None)
        for run in self.runs[self.rank :: self.world]:
            yield Draw(self.pairs[run], table[run])


class BatchDataset(Dataset[Batch]):
    """Dataset that turns a draw into a batch; holds only the store."""

    def __init__(self, store: PairStore) -> None:
        """Serves batches from `store`."""
        self.store = store

    def __getitem__(self, draw: Draw) -> Batch:
        """Returns the batch of `draw`."""
        store, (pairs, demonstrations, *drawn) = self.store, draw
        present = demonstrations != MISSING
        distinct, inverse = np.unique(demonstrations[present], return_inverse=True)
        index = np.full(demonstrations.shape, MISSING, dtype=np.int64)
        index[present] = inverse

        redrawings = Redrawings(
            *(None if part is None else torch.from_numpy(part) for part in drawn)
        )

        def grids(pairs: Indices, side: int) -> Grids:
            own = redrawings.select(torch.from_numpy(store.task_of[pairs]))
            return pad_grids(store, 2 * pairs + side).redrawn(own)

        return Batch(
            source=grids(pairs, 0),
            target=grids(pairs, 1),
            demo_inputs=grids(distinct, 0),
            demo_outputs=grids(distinct, 1),
            demo_index=torch.from_numpy(index),
            tasks=torch.from_numpy(store.task_of[pairs]),
            pairs=torch.from_numpy(pairs),
        )


T = TypeVar("T")


def planned_loader(
    dataset: Dataset[T], plan: Sampler[Any], *, processes: int = 0, pin_memory: bool = False
) -> DataLoader[T]:
    """Returns a loader of what `plan` draws, built in `processes` worker processes if > 0."""
    return DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=processes,
        persistent_workers=processes > 0,
        pin_memory=pin_memory,
        # A private generator: creating an iterator consumes randomness, which dropout must not see.
        generator=torch.Generator(),
    )
