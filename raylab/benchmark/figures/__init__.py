"""The four figures of a benchmark, and their intervals."""

from raylab.benchmark.figures.metrics import (
    compute_benchmark_consistency,
    compute_benchmark_difficulty,
    compute_benchmark_novelty,
    compute_benchmark_separability,
)

__all__ = [
    "compute_benchmark_consistency",
    "compute_benchmark_difficulty",
    "compute_benchmark_novelty",
    "compute_benchmark_separability",
]
