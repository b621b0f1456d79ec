"""Model FLOPs: the arithmetic that a network requires, however it is computed."""

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from raylab.arc.data.batching import BatchDataset, Draw, demonstration_table
from raylab.arc.data.store import Indices, PairStore
from raylab.arc.models.base import build_model
from raylab.config.models import ModelConfig

COUNTED_PAIRS = 64
"""Most pairs that are counted; of more, those at even places by length."""


def flops_per_sample(config: ModelConfig, store: PairStore, pairs: Indices) -> float:
    """Returns the mean model FLOPs of a training sample, forward and backward.

    They are those of the matrix products, two for each multiply-add, as in model FLOPs utilisation
    (Chowdhery et al. 2022, appendix B). A sample is counted alone, so there is no padding, its
    demonstrations are counted with it, and causal attention counts the whole square. Nothing is
    computed: the tensors have shapes only.

    Args:
        config: the architecture.
        store: the pairs of all tasks.
        pairs: pairs to train on, at least one.
    """
    model = build_model(config).to("meta")
    batches = BatchDataset(store)
    by_length = pairs[np.argsort(store.lengths[pairs].sum(axis=1), kind="stable")]
    count = min(len(pairs), COUNTED_PAIRS)
    chosen = by_length[((np.arange(count) + 0.5) * len(pairs) / count).astype(np.int64)]
    table = demonstration_table(store, chosen, config.context_pairs, None)
    total = 0
    for at in range(count):
        batch = batches[Draw(chosen[at : at + 1], table[at : at + 1], None)]
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            supervised = model.supervised(batch.to(torch.device("meta")))
            torch.stack([part.sum() for logits in supervised for part in logits]).sum().backward()
        total += counter.get_total_flops()
    return total / count
