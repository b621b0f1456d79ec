"""The criteria that an evaluator judges a code by."""

from raylab.codebook import FORMAT, Criterion

MECHANISM = "mechanism"
EXECUTION = "parallelism/pipelines"
"""Parallelism or pipelines mistaken for a mechanism."""
CRITERIA = (
    FORMAT,
    Criterion(MECHANISM, 50, ("mechanisms", "root", "roots")),
    Criterion(EXECUTION, 60, ("parallelism", "pipeline", "pipelines", "execution")),
    Criterion("composition"),
    Criterion("attributes", synonyms=("attribute", "attribute plausibility")),
)
"""The criteria in the order of reports, with the caps on labels that do not meet them."""
