"""The codebook that a configuration chooses."""

from raylab.codebook import Codebook
from raylab.config.annotation import ProtocolConfig
from raylab.opt.codebook import opt_codebook


def choose_codebook(protocol: ProtocolConfig) -> Codebook:
    """Returns the codebook of the Operational Premise Taxonomy, currently the only one.

    Raises:
        DataError: The file of distances cannot be used.
    """
    return opt_codebook(protocol.distance)
