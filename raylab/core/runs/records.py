"""Records: the JSON files that runs leave, as frozen models with a schema version.

Each record is defined beside the code that makes it. Only `Run.read_record` and `Run.write_record`
convert between files and records, so no other code depends on the form of the JSON.

A field that is shown to people carries a `Measure` in its type, and its docstring is its
explanation:

    pass_rate: Annotated[Figure, Measure("pass rate")]
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

VERSION_KEY = "schema_version"


class Part(BaseModel):
    """A frozen part of a record; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Record(Part):
    """The content of one JSON file of a run.

    Attributes:
        file: Name of the file in the run directory.
        version: Schema version, which grows with every change of the fields.
    """

    file: ClassVar[str]
    version: ClassVar[int] = 1

    def content(self) -> dict[str, Any]:
        """Returns the JSON values to write, with the schema version first."""
        return {VERSION_KEY: self.version, **self.model_dump(mode="json")}

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Self:
        """Returns the record of this content; a `ValueError` if it is not valid."""
        version = content.get(VERSION_KEY)
        # True equals 1, and is no version.
        if type(version) is not int or version != cls.version:
            raise ValueError(
                f"it is of schema version {version}, this raylab reads {cls.version}: use the "
                "raylab that wrote it"
            )
        values = {key: value for key, value in content.items() if key != VERSION_KEY}
        try:
            # Strict JSON, so that a text such as "nan" is not read as a number.
            return cls.model_validate_json(msgspec.json.encode(values), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {first['msg']}") from error


class Figure(Part):
    """A number with its 95 % interval, or the reason why one of them is missing."""

    value: float | None = None
    """None if it is undefined."""
    interval: tuple[float, float] | None = None
    """Ends of its 95 % interval; None if there is none."""
    count: int | None = None
    """Number of cases that it is computed from; None if it is not of cases."""
    corrected: float | None = None
    """The value without the bias from chance, where that is known. The interval lies around it and
    may exclude the value."""
    reason: str | None = None
    """The reason why the value, or else the interval, is missing; None if both are there."""

    @property
    def cases(self) -> int:
        """The number of cases that a share stands for."""
        return round((self.value or 0.0) * (self.count or 0))


@dataclass(frozen=True)
class Measure:
    """A figure that is shown to people.

    Attributes:
        label: Its name in tables and charts.
        form: Its format; a share is in [0, 1].
        better: The good end of its scale; None if neither is.
    """

    label: str
    form: Literal["share", "number", "count", "seconds"] = "share"
    better: Literal["higher", "lower"] | None = "higher"


def list_measures(kind: type[Part]) -> dict[str, Measure]:
    """Returns the measures of a part by the names of their fields, in the order of the fields."""
    return {
        name: mark
        for name, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Measure)
    }


def explain_field(kind: type[Part], name: str) -> str:
    """Returns the docstring of a field on one line."""
    return " ".join((kind.model_fields[name].description or "").split())
