"""The configuration of a sweep's search: its space, and the way it draws trials."""

import itertools
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field, PositiveFloat, ValidationError, model_validator

from raylab.config.arc import TrainingConfig
from raylab.config.base import Scalar, Strict
from raylab.config.models import MODEL_CONFIGS, Architecture, CustomConfig
from raylab.config.schema import problems_of


class Domain(Strict):
    """The values that a search draws one key from: exactly one of these."""

    choice: Annotated[tuple[Scalar, ...], Field(min_length=1)] | None = None
    """One of these."""
    uniform: tuple[float, float] | None = None
    """Any number between the two."""
    log_uniform: tuple[PositiveFloat, PositiveFloat] | None = None
    """Any number between the two, uniform in the logarithm."""
    integer: tuple[int, int] | None = None
    """Any whole number from the first to the last."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Domain":
        given = [key for key, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"needs exactly one of {', '.join(Domain.model_fields)}, has "
                f"{', '.join(given) or 'none'}: set the others to null"
            )
        if self.choice is None and self.bounds[0] >= self.bounds[1]:
            low, high = self.bounds
            raise ValueError(f"{given[0]}: {low} should be less than {high}")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number of a numeric domain."""
        found = self.uniform or self.log_uniform or self.integer
        assert found is not None
        return found

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """All choices, or the least and the greatest number."""
        return self.bounds if self.choice is None else self.choice


Domains = dict[str, Domain]


class SearchSpace(Strict):
    """The space that a sweep searches."""

    model: Annotated[dict[Architecture, Domains], Field(min_length=1)]
    """The architectures, each with the domains of its own keys, such as `d_model`, or of `custom`
    `target` and `options.width`."""
    training: Domains = Field(default={})
    """Domains of `training` keys, for all architectures."""

    @model_validator(mode="after")
    def _keys_and_values_fit(self) -> "SearchSpace":
        for architecture, domains in self.model.items():
            _check_domains(MODEL_CONFIGS[architecture], domains, f"model.{architecture}")
        _check_domains(TrainingConfig, self.training, "training")
        return self


CHECKED_COMBINATIONS = 4096


def _check_domains(kind: type[BaseModel], domains: Domains, where: str) -> None:
    unknown = [key for key in domains if not _is_drawable(kind, key)]
    if unknown:
        known = ", ".join(key for key in kind.model_fields if key != "architecture")
        raise ValueError(f"{where} has no key {', '.join(unknown)}; its keys: {known}")
    combinations = itertools.product(*(domain.extremes for domain in domains.values()))
    for values in itertools.islice(combinations, CHECKED_COMBINATIONS):
        drawn = nested(dict(zip(domains, values, strict=True)))
        try:
            kind.model_validate_json(json.dumps(drawn), strict=True)
        except ValidationError as error:
            problem = problems_of(kind, error)[0]
            raise ValueError(f"{where} allows {json.dumps(drawn)}, but {problem}") from error


def _is_drawable(kind: type[BaseModel], key: str) -> bool:
    head, dot, option = key.partition(".")
    if dot:
        return kind is CustomConfig and head == "options" and option != ""
    return head in kind.model_fields and head != "architecture"


def nested(drawn: Mapping[str, Scalar]) -> dict[str, Any]:
    """Returns drawn values as a configuration has them: `options.width` as `{options: {width}}`."""
    values: dict[str, Any] = {}
    for key, value in drawn.items():
        head, dot, option = key.partition(".")
        if dot:
            values.setdefault(head, {})[option] = value
        else:
            values[head] = value
    return values


class Search(StrEnum):
    """The way a sweep draws its trials."""

    TPE = "tpe"
    RANDOM = "random"
