"""Model classes of users."""

import importlib
from collections.abc import Iterable

from raylab.arc.config.models import CustomConfig
from raylab.arc.models.base import GridModel
from raylab.core.errors import ConfigError


def build_custom(config: CustomConfig) -> GridModel:
    """Returns a model of the class that the configuration names, made with its options."""
    kind = model_class(config.target)
    try:
        return kind(**config.options)
    except TypeError as error:
        raise ConfigError(
            f"model.target={config.target} cannot be made with model.options="
            f"{dict(config.options)}: {error}"
        ) from error


def import_model_classes(targets: Iterable[str]) -> None:
    """Imports the model classes that a configuration names, so that checkpoints may use them."""
    for target in targets:
        model_class(target)


def model_class(target: str) -> type[GridModel]:
    """Imports a class of models, `package.module:Class`."""
    module, _, name = target.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"model.target={target} cannot be imported: {module} raises {type(error).__name__}: "
            f"{error}: install its package, or put its folder into PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, GridModel)):
        raise ConfigError(
            f"model.target={target} is no model class: {module} must have a class {name} that "
            "inherits raylab.arc.models.base.GridModel"
        )
    return kind
