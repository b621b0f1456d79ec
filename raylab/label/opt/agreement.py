"""Agreement of two OPT-Codes, and the distance between sets of roots."""

import json
from functools import cache
from importlib import resources

from raylab.label.codebooks import codebook
from raylab.label.codebooks.codebook import Agreement, Label, SetDistance
from raylab.label.codebooks.distances import Distance


def compare(a: Label, b: Label, distance: SetDistance | None = None) -> Agreement:
    """Compares two codes; symmetric.

    Args:
        a: One code.
        b: The other.
        distance: Distance between sets of roots; None takes the packaged opt-l1-v1.

    Returns:
        The measures that `raylab.label.codebooks.codebook.Agreement` describes; `weighted` is 1
        minus the 1-Wasserstein distance of the sets of roots.
    """
    return codebook.compare(a, b, distance or packaged_distance())


@cache
def packaged_distance() -> Distance:
    """Returns the distance opt-l1-v1."""
    file = resources.files("raylab.label.opt") / "data/distance_opt_l1_v1.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    return Distance(content["version"], content["labels"], content["table"])
