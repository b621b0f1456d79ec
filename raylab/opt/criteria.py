"""The criteria that an evaluator judges a code by."""

from raylab.codebook import FORMAT, Criterion

MECHANISM = "mechanism"
EXECUTION = "execution"
"""Parallelism or pipelines taken for a mechanism."""
CRITERIA = (
    FORMAT,
    Criterion(MECHANISM, 50, ("mechanisms", "root", "roots")),
    Criterion(EXECUTION, 60, ("parallelism", "pipeline", "pipelines", "parallelism/pipelines")),
    Criterion("composition"),
    Criterion("attributes", synonyms=("attribute", "attribute plausibility")),
)
"""In the order of reports; the caps are of a wrong set of roots, and of execution for a root."""
