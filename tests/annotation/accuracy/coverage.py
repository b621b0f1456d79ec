"""How often intervals of an audited share hold the truth.

python -m tests.annotation.accuracy.coverage
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from raylab.annotation.accuracy.audit import Z, predicted_share
from raylab.annotation.statistics.estimates import proportion
from raylab.log import log_line

SHARES = (0.6, 0.8, 0.9, 0.95, 0.98)
GAPS = (0.0, 0.1, 0.25)
"""By how much the score of a wrong code lies below that of a right one."""
BATCHES = ((200, 10), (200, 20), (400, 40), (1000, 50), (2000, 200))
"""Cases, and how many of them are audited in the mean."""


@dataclass(frozen=True)
class Coverage:
    """Shares of the rounds in which an interval held the truth, and a mean width.

    Attributes:
        normal: of the published interval of prediction-powered inference.
        ours: of that of `predicted_share`.
        alone: of Wilson's interval of the audited cases alone.
        width: of ours, divided by that of the audited cases alone.
    """

    normal: float
    ours: float
    alone: float
    width: float


def simulate(share: float, gap: float, cases: int, audited: int, rounds: int) -> Coverage:
    """Audits batches of which this share is right, in expectation."""
    generator = np.random.default_rng(7)
    held, widths = np.zeros(3), np.zeros(2)
    done = 0
    while done < rounds:
        truth = generator.random(cases) < share
        scores = np.where(truth, 0.9, 0.9 - gap) + generator.normal(0, 0.05, cases)
        scores = np.clip(scores.round(2), 0.7, 1)
        sample = generator.random(cases) < audited / cases
        if sample.sum() < 2:
            continue
        labels = truth[sample].astype(float)
        found = predicted_share(labels, scores[sample], scores)
        rest = labels - found.weight * scores[sample]
        value = found.weight * scores.mean() + rest.mean()
        variance = found.weight**2 * scores.var(ddof=1) / cases + rest.var(ddof=1) / len(labels)
        normal = (value - Z * math.sqrt(variance), value + Z * math.sqrt(variance))
        alone = proportion(int(labels.sum()), len(labels)).interval
        assert alone is not None
        intervals = (normal, found.interval, alone)
        held += [low <= share <= high for low, high in intervals]
        widths += [high - low for low, high in intervals[1:]]
        done += 1
    normal, ours, alone = (held / rounds).tolist()
    return Coverage(normal, ours, alone, float(widths[0] / widths[1]))


def main() -> None:
    """Prints a row for each kind of batch."""
    log_line("share  gap  cases  audited  normal  ours   alone  width")
    for share, gap, (cases, audited) in product(SHARES, GAPS, BATCHES):
        of = simulate(share, gap, cases, audited, 1500)
        figures = f"{of.normal:.3f}   {of.ours:.3f}  {of.alone:.3f}  {of.width:.2f}"
        log_line(f"{share:<5}  {gap:<4} {cases:<5}  {audited:<7}  {figures}")


if __name__ == "__main__":
    main()
