"""How far two OPT-Codes agree."""

from raylab import codebook
from raylab.codebook import Agreement
from raylab.opt.code import OptCode
from raylab.opt.distance import Distance, load_distance


def compare(a: OptCode, b: OptCode, distance: Distance | None = None) -> Agreement:
    """Compares two codes; symmetric.

    Args:
        a: One code.
        b: The other.
        distance: Between roots; None takes the packaged opt-l1-v1.

    Returns:
        The measures that `raylab.codebook.Agreement` describes; `weighted` is one less the
        1-Wasserstein distance of the sets of roots.
    """
    return codebook.compare(a, b, distance or load_distance())
