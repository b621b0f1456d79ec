"""Coverage of the interval of an audited share, and its width beside Wilson's of the audited."""

from itertools import product

import numpy as np
import pytest

from raylab.annotation.statistics.accuracy import predicted_share
from raylab.annotation.statistics.estimates import proportion
from tests.coverage.table import MARKS, Hits, Record, check, generator

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
    share: float, gap: float, batch: tuple[int, int], simulations: int, record_property: Record
) -> None:
    cases, audited = batch
    draw = generator(share, gap, batch)
    hit, widths = Hits(), np.zeros(2)
    while hit.tried < simulations:
        truth = draw.random(cases) < share
        scores = np.where(truth, 0.9, 0.9 - gap) + draw.normal(0, 0.05, cases)
        scores = np.clip(scores.round(2), 0.7, 1)
        sample = draw.random(cases) < audited / cases
        if sample.sum() < 2:
            continue
        labels = truth[sample].astype(float)
        found = predicted_share(labels, scores[sample], scores)[0].interval
        alone = proportion(int(labels.sum()), len(labels)).interval
        assert found is not None and alone is not None
        hit.add(found, share)
        widths += [high - low for low, high in (found, alone)]
    check({"audited share": hit}, record_property)
    # Scores that tell nothing cost no precision.
    assert widths[0] < 1.01 * widths[1]
