"""Parts of records from tables."""

from typing import Any, TypeVar

from raylab.core.runs.records import Part

Kind = TypeVar("Kind", bound=Part)


def make_parts(kind: type[Kind], table: Any) -> tuple[Kind, ...]:
    """Returns a part for each row of a table, with None for NaN and without the other columns."""
    own = table[[name for name in table if name in kind.model_fields]].astype(object)
    rows = own.where(own.notna(), None).to_dict("records")
    return tuple(map(kind.model_validate, rows))
