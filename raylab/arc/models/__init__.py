"""The networks: those that write cell by cell, the recursive one, and those of users.

The architectures follow Ingram & Merrit 2025, *An Empirical Answer to re-arc*.
"""

from raylab.arc.config.models import (
    ChampionConfig,
    CustomConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
    RecursiveConfig,
)
from raylab.arc.models.autoregressive import DecoderOnly, EncoderDecoder
from raylab.arc.models.base import GridModel
from raylab.arc.models.custom import build_custom
from raylab.arc.models.recursive import Recursive


def build_model(config: ModelConfig) -> GridModel:
    """Returns the network of `config`, freshly initialised from PyTorch's random state."""
    match config:
        case ChampionConfig() | EncoderDecoderConfig():
            model = EncoderDecoder(config)
        case DecoderOnlyConfig():
            model = DecoderOnly(config)
        case RecursiveConfig():
            model = Recursive(config)
        case CustomConfig():
            model = build_custom(config)
    model.size_rule = config.size_rule
    return model
