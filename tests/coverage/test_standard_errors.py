"""Coverage of 1.96 standard errors around a share of grids, and one of cells."""

from itertools import product

import pytest
import torch

from raylab.arc.metrics import Count, standard_errors
from raylab.runs.eval_logs import is_estimated
from tests.coverage.table import MARKS, Hits, Record, check, generator

pytestmark = MARKS

SHARES = (0.1, 0.5, 0.9)
GRIDS = (30, 100, 400)


@pytest.mark.parametrize(("share", "grids"), list(product(SHARES, GRIDS)))
def test_standard_errors_hold_the_truth(
    share: float, grids: int, simulations: int, record_property: Record
) -> None:
    """A grid has 4 to 200 cells; its share of right ones is Beta with a concentration of 3."""
    draw = generator(share, grids)
    hits = {name: Hits() for name in ("grid_accuracy", "cell_accuracy")}
    for _ in range(simulations):
        cells = draw.integers(4, 200, grids)
        right = draw.binomial(cells, draw.beta(3 * share, 3 * (1 - share), grids))
        counts = torch.zeros(grids, len(Count), dtype=torch.int64)
        counts[:, Count.GRIDS] = 1
        counts[:, Count.EXACT] = torch.from_numpy(draw.binomial(1, share, grids))
        counts[:, Count.CELLS] = torch.from_numpy(cells)
        counts[:, Count.CORRECT_CELLS] = torch.from_numpy(right)
        errors = standard_errors(counts)
        values = {
            "grid_accuracy": float(counts[:, Count.EXACT].double().mean()),
            "cell_accuracy": float(right.sum() / cells.sum()),
        }
        for name, hit in hits.items():
            value, half = values[name], 1.96 * errors[name]
            hit.add((value - half, value + half) if is_estimated(value, grids) else None, share)
    named = {f"standard error of {name}": hit for name, hit in hits.items()}
    check(named, record_property, fewest=1.0)
