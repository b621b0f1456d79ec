"""Coverage of the intervals of audited shares and of the area under a ROC curve.

Also of 1.96 standard errors around a share.
"""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from raylab.arc.metrics import Count, standard_errors
from raylab.core.runs.eval_logs import is_estimated
from raylab.core.stats import proportion
from raylab.label.statistics.accuracy import area_under_curve, predicted_share
from tests.coverage.table import MARKS, Figures, Measure, generator

pytestmark = MARKS

SHARES = (0.6, 0.8, 0.9, 0.95, 0.98)
GAPS = (0.0, 0.1, 0.25)
"""By how much the score of a wrong code lies below that of a right one."""
BATCHES = ((200, 10), (200, 20), (400, 40), (1000, 50), (2000, 200))
"""Cases, and how many of them are audited in the mean."""


@pytest.mark.parametrize(
    ("share", "gap", "batch"), list(product(SHARES, GAPS, BATCHES)), ids=lambda value: str(value)
)
def test_intervals_of_an_audit_hold_the_share(
    share: float, gap: float, batch: tuple[int, int], measure: Measure
) -> None:
    cases, audited = batch
    draw = generator(share, gap, batch)
    widths = np.zeros(2)

    def simulate() -> Figures:
        while True:
            truth = draw.random(cases) < share
            scores = np.where(truth, 0.9, 0.9 - gap) + draw.normal(0, 0.05, cases)
            scores = np.clip(scores.round(2), 0.7, 1)
            sample = draw.random(cases) < audited / cases
            if sample.sum() >= 2:
                break
        labels = truth[sample].astype(float)
        interval = predicted_share(labels, scores[sample], scores)[0].interval
        alone = proportion(int(labels.sum()), len(labels)).interval
        assert interval is not None and alone is not None
        widths[:] += [high - low for low, high in (interval, alone)]
        return {"audited share": (interval, share)}

    measure(simulate)
    # Scores that tell nothing cost no precision.
    assert widths[0] < 1.01 * widths[1]


@pytest.mark.parametrize(
    ("share", "error", "batch"), [(0.8, 0.1, (1000, 100)), (0.9, 0.15, (2000, 200))]
)
def test_intervals_of_an_audit_by_two_hold_the_share_that_a_third_would_leave(
    share: float, error: float, batch: tuple[int, int], measure: Measure
) -> None:
    """Each person errs in a share of the cases; a third takes the right code of two in nine of ten.

    Where a wrong code is given, it is that of a wrong protocol in half of the cases.
    """
    cases, audited = batch
    draw = generator("two", share, error, batch)

    def simulate() -> Figures:
        right = draw.random(cases) < share
        errs, same = draw.random((2, cases)) < error, draw.random((2, cases)) < 0.5
        match = np.where(errs, ~right & same, right)
        agree = (errs[0] == errs[1]) & (~errs[0] | (same[0] == same[1]))
        better = np.where(errs[0] & ~errs[1], 1, 0)
        chosen = np.where(draw.random(cases) < 0.9, better, 1 - better)
        truth = np.where(agree, match[0], np.take_along_axis(match, chosen[None], 0)[0])
        scores = np.clip(0.6 + 0.3 * right + draw.normal(0, 0.15, cases), 0, 1)
        sample = draw.permutation(cases)[:audited]
        alike = agree[sample]
        chance = match[0][sample][alike].mean()
        labels = np.where(alike, match[0][sample], chance * match[:, sample].any(axis=0))
        figure, _ = predicted_share(labels, scores[sample], scores)
        return {"audited share: two people": (figure.interval, float(truth.mean()))}

    measure(simulate)


def test_intervals_of_the_area_under_the_curve_hold_the_truth(measure: Measure) -> None:
    """Scores of right and of wrong codes are normal with unit variance, and rounded."""
    draw, truth = generator("area"), float(stats.norm.cdf(np.sqrt(0.5)))

    def simulate() -> Figures:
        right, wrong = (np.round(50 + 10 * draw.normal(at, 1, n)) for at, n in ((1, 40), (0, 15)))
        return {"area under the ROC curve": (area_under_curve(right, wrong).interval, truth)}

    measure(simulate)


@pytest.mark.parametrize(("share", "grids"), list(product((0.1, 0.5, 0.9), (30, 100, 400))))
def test_standard_errors_hold_the_truth(share: float, grids: int, measure: Measure) -> None:
    """A grid has 4 to 200 cells; its share of right ones is Beta with a concentration of 3."""
    draw = generator(share, grids)

    def simulate() -> Figures:
        cells = draw.integers(4, 200, grids)
        right = draw.binomial(cells, draw.beta(3 * share, 3 * (1 - share), grids))
        counts = torch.zeros(grids, len(Count), dtype=torch.int64)
        counts[:, Count.GRIDS] = 1
        counts[:, Count.EXACT] = torch.from_numpy(draw.binomial(1, share, grids))
        counts[:, Count.CELLS] = torch.from_numpy(cells)
        counts[:, Count.CORRECT_CELLS] = torch.from_numpy(right)
        values = {
            "grid_accuracy": float(counts[:, Count.EXACT].double().mean()),
            "cell_accuracy": float(right.sum() / cells.sum()),
        }
        halves = {name: 1.96 * error for name, error in standard_errors(counts).items()}
        return {
            f"standard error of {name}": (
                (value - halves[name], value + halves[name])
                if is_estimated(value, grids)
                else None,
                share,
            )
            for name, value in values.items()
        }

    measure(simulate, fewest=1.0)
