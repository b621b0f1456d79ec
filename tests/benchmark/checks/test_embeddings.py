import numpy as np
import pytest

from raylab.benchmark.checks.embeddings import (
    maximum_mean_discrepancy,
    mean_distance_to_medoid,
    measure_diversity,
    proxy_a_distance,
)

RANDOM = np.random.default_rng(1)


def test_medoids_of_pairs_lie_half_a_distance_from_their_texts() -> None:
    # Five pairs far apart, each 0.2 wide: a medoid is one of the two, the other lies 0.2 from it.
    vectors = np.array([[100.0 * pair, side] for pair in range(5) for side in (0.0, 0.2)])
    assert mean_distance_to_medoid(vectors) == pytest.approx(0.1)


def test_discrepancy_equals_its_definition() -> None:
    own, other = RANDOM.normal(size=(7, 3)), RANDOM.normal(1.0, size=(5, 3))

    def mean_kernel(left: np.ndarray, right: np.ndarray) -> float:
        return float(np.mean([[(x @ y / 3 + 1) ** 3 for y in right] for x in left]))

    expected = mean_kernel(own, own) + mean_kernel(other, other) - 2 * mean_kernel(own, other)
    assert maximum_mean_discrepancy(own, other) == pytest.approx(expected)
    assert maximum_mean_discrepancy(own, own) == pytest.approx(0.0, abs=1e-12)


def test_a_classifier_tells_distant_texts_apart_and_guesses_between_like_ones() -> None:
    own, like = RANDOM.normal(size=(2, 400, 4))
    assert proxy_a_distance(own, like + 20.0) == pytest.approx(2.0, abs=0.01)
    assert proxy_a_distance(own, like) == pytest.approx(0.0, abs=0.1)


def test_few_texts_have_a_reason_and_no_distance() -> None:
    vectors = RANDOM.normal(size=(20, 3))
    (few, enough) = measure_diversity("m", vectors, {"few": vectors[:9], "all": vectors}).priors
    for figure in (few.proxy_a_distance, few.discrepancy):
        assert figure.value is None and figure.reason == "each side needs 10 texts"
    assert enough.discrepancy.value == pytest.approx(0.0, abs=1e-12)
