"""Records: the JSON files that runs leave, as frozen models with a schema version.

Each record is defined beside its producer. Only `Run.read_record` and `Run.write_record` convert
between files and records, so no other code depends on the form of the JSON.
"""

import json
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from raylab.config.schema import problems_of

VERSION_KEY = "schema_version"


class Part(BaseModel):
    """A frozen part of a record; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Record(Part):
    """The content of one JSON file of a run.

    Attributes:
        file: Name of the file in the run directory.
        version: Schema version that this raylab writes; it grows with every change of the fields.
    """

    file: ClassVar[str]
    version: ClassVar[int] = 1

    def content(self) -> dict[str, Any]:
        """Returns the JSON values to write, with the schema version first."""
        return {VERSION_KEY: self.version, **self.model_dump(mode="json")}

    @classmethod
    def migrated(cls, content: dict[str, Any], version: int) -> dict[str, Any] | None:
        """Brings the content of another version to the form of this one.

        Args:
            content: Content without its schema version.
            version: Version of the content; 0 if it has none.

        Returns:
            The migrated content; None if that is impossible, and the record counts as absent.
        """
        return None

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> Self | None:
        """Returns the record of this content; None if its version cannot be read.

        Raises:
            ValueError: The content is of this version, or migrated to it, and is not valid.
        """
        version: object = content.get(VERSION_KEY, 0)
        if type(version) is not int:
            raise ValueError(f"{VERSION_KEY} should be a number")
        values: dict[str, Any] | None = {k: v for k, v in content.items() if k != VERSION_KEY}
        if version != cls.version:
            values = cls._migrated_safely(values, version)
        if values is None:
            return None
        try:
            # As JSON and strictly: a text is no number, and "nan" least of all.
            return cls.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            problem = problems_of(cls, error.errors(include_url=False))[0]
            raise ValueError(str(problem)) from error

    @classmethod
    def _migrated_safely(cls, content: dict[str, Any], version: int) -> dict[str, Any] | None:
        try:
            return cls.migrated(content, version)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"it is not of schema version {version}, as it says") from error
