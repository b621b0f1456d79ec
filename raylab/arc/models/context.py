"""The encoder of demonstrations, which the champion and the recursive model share."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.config.models import DemonstratedConfig
from raylab.arc.data.batching import MISSING, Batch, Grids
from raylab.arc.data.tasks import COLOURS
from raylab.arc.models.base import inside
from raylab.arc.models.layers import EdgePositions, Layer, Stack

LENGTH_SPREAD = 48
"""Largest difference in cells between pairs that a CPU pads to one length."""
D_CONTEXT = 64
"""Width of the context encoder."""
LAYERS, HEADS, D_FF = 2, 4, 256
"""Layers over the cells of a demonstration pair, their heads, and the width inside."""
D_PLACE = 24
"""Width of the codes of places that input and output multiply."""


class ContextEncoder(nn.Module):
    """Encoder of demonstrations, one vector per query; reads each distinct pair once per batch.

    A pair is read as one sequence of its input and output, and by its `Correspondence`; both codes
    are added. The context of a query is the mean over its pairs.
    """

    def __init__(self, config: DemonstratedConfig) -> None:
        super().__init__()
        self.narrow = nn.Linear(config.d_model, D_CONTEXT)
        self.positions = EdgePositions(D_CONTEXT)
        self.sides = nn.Parameter(torch.randn(2, D_CONTEXT))
        self.reader = nn.Parameter(torch.randn(D_CONTEXT))
        self.layers = Stack(
            Layer(D_CONTEXT, HEADS, D_FF, config.encoder_dropout) for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(D_CONTEXT)
        self.correspondence = Correspondence()

    def forward(self, batch: Batch, colours: nn.Embedding) -> Tensor:
        """Returns (B, D) contexts, zero for a query without demonstrations."""
        inputs, outputs = batch.demo_inputs, batch.demo_outputs
        read = partial(self._read, table=self.narrow(colours.weight))
        pairs = _by_length(inputs, outputs, read) + self.correspondence(inputs, outputs)
        shown = (batch.demo_index != MISSING).to(pairs.dtype)
        weights = shown / shown.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.einsum("bk,bkd->bd", weights, F.pad(pairs, (0, 0, 0, 1))[batch.demo_index])

    def _read(self, inputs: Grids, outputs: Grids, table: Tensor) -> Tensor:
        """Returns (P, D) codes of the pairs, read by a token before their cells."""
        cells = [
            F.embedding(grids.cells, table) + self.positions(grids) + side
            for grids, side in zip((inputs, outputs), self.sides, strict=True)
        ]
        x = torch.cat((self.reader.expand(len(inputs.cells), 1, -1), *cells), dim=1)
        mask = None
        if inputs.padded or outputs.padded:
            within = torch.cat((inside(inputs), inside(outputs)), dim=1)
            mask = F.pad(within, (1, 0), value=True)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask=mask)
        return self.norm(x[:, 0])


class Correspondence(nn.Module):
    """Encoder of where the colours of a pair's input are in its output.

    For each colour, the mean codes of its places in input and output are multiplied, and the
    products are summed over colours. Unlike a mean over cells, this bilinear pooling (Lin et al.
    2015, arXiv 1504.07889) keeps which place went where. It does not depend on which colours the
    grids have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.positions = EdgePositions(D_CONTEXT)
        self.source, self.target = nn.Linear(D_CONTEXT, D_PLACE), nn.Linear(D_CONTEXT, D_PLACE)
        self.context = nn.Linear(D_PLACE * D_PLACE, D_CONTEXT)
        self.norm = nn.LayerNorm(D_CONTEXT)

    def forward(self, inputs: Grids, outputs: Grids) -> Tensor:
        """Returns (P, D) codes of P pairs."""
        sources, _ = self._places(inputs, self.source)
        targets, shares = self._places(outputs, self.target)
        products = torch.einsum("pcu,pc,pcv->puv", sources, shares, targets)
        return self.norm(self.context(products.flatten(1)))

    def _places(self, grids: Grids, narrow: nn.Linear) -> tuple[Tensor, Tensor]:
        """Returns the mean (P, 10, D) code of each colour's places, and its (P, 10) share."""
        codes = narrow(self.positions(grids))
        colours = F.one_hot(grids.cells, COLOURS + 1)[..., :COLOURS].to(codes.dtype)
        counts = colours.sum(dim=1)
        means = torch.einsum("plc,plr->pcr", colours, codes) / counts.clamp(min=1)[..., None]
        return means, counts / counts.sum(dim=1, keepdim=True)


def _by_length(inputs: Grids, outputs: Grids, read: Callable[[Grids, Grids], Tensor]) -> Tensor:
    """Returns the results of `read` for P pairs; a CPU reads pairs of like lengths together."""
    lengths = inputs.sizes.prod(dim=1) + outputs.sizes.prod(dim=1)
    # Padding costs a CPU time. On a GPU another kernel launch costs more.
    if lengths.device.type != "cpu" or len(lengths) < 2:
        return read(inputs, outputs)
    ordered, order = lengths.sort()
    starts = [0]
    for index, length in enumerate(ordered.tolist()):
        if length - ordered[starts[-1]] > LENGTH_SPREAD:
            starts.append(index)
    alike = order.tensor_split(starts[1:])
    results = [read(inputs.select(index), outputs.select(index)) for index in alike]
    return torch.cat(results)[order.argsort()]
