import math

import pytest

from raylab.annotation.statistics.estimates import (
    Difference,
    Estimate,
    compare_proportions,
    proportion,
)


def about(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-9)


def test_wilson_interval():
    # z = 1.959964: centre (p + z2/2n) / (1 + z2/n), half width z sqrt(pq/n + z2/4n2) / (1 + z2/n).
    z2, p, n = 1.959963984540054**2, 0.8, 10
    centre, scale = (p + z2 / (2 * n)) / (1 + z2 / n), 1 + z2 / n
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / scale
    found = proportion(8, 10)
    assert (found.value, found.count, found.reason) == (0.8, 10, None)
    assert found.interval == (about(centre - half), about(centre + half))
    assert proportion(0, 10).interval == (0.0, about(z2 / (n + z2)))
    assert proportion(10, 10).interval == (about(n / (n + z2)), 1.0)
    assert proportion(0, 0) == Estimate(value=None, interval=None, count=0, reason="no cases")
    for wrong in ((3, 2), (-1, 2), (1, 0)):
        with pytest.raises(ValueError):
            proportion(*wrong)


@pytest.mark.parametrize(
    ("first", "second", "interval"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table II, method 10
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 10), (0.6075, 1.0)),
    ],
)
def test_difference_of_proportions(
    first: tuple[int, int], second: tuple[int, int], interval: tuple[float, float]
):
    found = compare_proportions(first, second)
    assert found.value == about(first[0] / first[1] - second[0] / second[1])
    assert found.interval == pytest.approx(interval, abs=5e-5)
    assert compare_proportions(second, first).p_value == about(found.p_value or 0)


def test_the_test_of_two_proportions_is_fishers():
    # The lady who tastes tea: 2 * (C(4,3) * C(4,1) + 1) / C(8,4) = 34 / 70.
    assert compare_proportions((3, 4), (1, 4)).p_value == about(34 / 70)
    assert compare_proportions((5, 10), (5, 10)).p_value == about(1.0)
    assert compare_proportions((900_000, 1_000_000), (700_000, 1_000_000)).p_value == about(0)
    assert compare_proportions((0, 0), (1, 4)) == Difference(
        value=None, interval=None, p_value=None
    )
