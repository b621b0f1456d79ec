"""The codebook that a configuration chooses."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from raylab.core.config.schema import explain_errors
from raylab.core.errors import ConfigError
from raylab.label.codebooks.codebook import Codebook
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import EXAMPLES, CodebookConfig
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.opt.codebook import opt_codebook

BUILT_IN: Mapping[str, Callable[[], Codebook]] = {"opt": opt_codebook}
"""The codebooks that have a room of their own, by name."""


def choose_codebook(config: AnnotateConfig) -> Codebook:
    """Returns the codebook of an annotation."""
    return _make(config.codebook)


def recorded_codebook(config: Mapping[str, Any]) -> Codebook:
    """Returns the codebook of an archived run by its configuration.

    Raises:
        ConfigError: The configuration has none that this raylab can use.
        DataError: A table of distances is no metric.
    """
    chosen = config.get("codebook", "opt")
    if isinstance(chosen, str):
        return _make(chosen)
    try:
        return _make(CodebookConfig.model_validate(chosen))
    except ValidationError as error:
        raise ConfigError(f"its codebook: {explain_errors(CodebookConfig, error)[0]}") from None


def _make(chosen: str | CodebookConfig) -> Codebook:
    if not isinstance(chosen, str):
        return make_codebook(chosen)
    if chosen not in BUILT_IN:
        names = ", ".join([*BUILT_IN, *EXAMPLES])
        raise ConfigError(f"codebook={chosen} is none of {names}, nor the name of a file in YAML")
    return BUILT_IN[chosen]()
