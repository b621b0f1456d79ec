"""Agreement of two OPT-Codes."""

from raylab import codebook
from raylab.codebook import Agreement
from raylab.opt.code import OptCode
from raylab.opt.distance import Distance, load_distance


def compare(a: OptCode, b: OptCode, distance: Distance | None = None) -> Agreement:
    """Compares two codes; symmetric.

    Args:
        a: One code.
        b: The other.
        distance: Distance between roots; None takes the packaged opt-l1-v1.

    Returns:
        The measures described by `raylab.codebook.Agreement`; `weighted` is 1 minus the
        1-Wasserstein distance of the sets of roots.
    """
    return codebook.compare(a, b, distance or load_distance())
