"""Faults of pairs and grids in plain JSON, with their positions.

msgspec and numpy read valid files fast. This slower code only explains the invalid ones.
"""

import json
import sys
from typing import cast

from raylab.arc.data.tasks import COLOURS, MAX_SIDE

SIDES = range(1, MAX_SIDE + 1)
ANY_SIDES = range(1, sys.maxsize)


def pairs_fault(part: str, content: object, sides: range) -> str | None:
    """Returns the fault of a list of pairs; None if it has none. `part` names it in the fault."""
    if not isinstance(content, list):
        return f"{part}pairs: expected a list of {{input, output}}, found {kind_of(content)}"
    if not content:
        return f"{part}pairs: the list is empty"
    for index, pair in enumerate(cast(list[object], content)):
        fault = pair_fault(pair, sides, output_needed=True)
        if fault:
            return f"{part}pair {index}{fault}"
    return None


def pair_fault(content: object, sides: range, output_needed: bool) -> str | None:
    """Returns the fault of a pair; None if it has none. A test pair may lack its output."""
    if not isinstance(content, dict):
        return f": expected an object {{input, output}}, found {kind_of(content)}"
    pair = cast(dict[str, object], content)
    for side in ("input", "output"):
        if side == "output" and not output_needed and pair.get(side) is None:
            continue
        if side not in pair:
            return f': the key "{side}" is missing'
        fault = grid_fault(pair[side], sides)
        if fault:
            return f" {side}{fault}"
    return None


def grid_fault(content: object, sides: range) -> str | None:
    """Returns the fault of a grid whose sides must be in `sides`; None if it has none."""
    if not isinstance(content, list):
        return f": expected a list of rows, found {kind_of(content)}"
    rows = cast(list[object], content)
    if len(rows) not in sides:
        return f": {len(rows)} rows, a grid has 1 to {MAX_SIDE}"
    width = None
    for index, row in enumerate(rows):
        fault = _row_fault(row, width, sides)
        if fault:
            return f", row {index}{fault} (rows, columns and pairs count from 0)"
        width = len(cast(list[object], row))
    return None


def _row_fault(content: object, width: int | None, sides: range) -> str | None:
    if not isinstance(content, list):
        return f": expected a list of colours, found {kind_of(content)}"
    row = cast(list[object], content)
    if width is not None and len(row) != width:
        return f": {len(row)} columns, the rows above have {width}"
    if len(row) not in sides:
        return f": {len(row)} columns, a grid has 1 to {MAX_SIDE}"
    for column, cell in enumerate(row):
        # type, not isinstance: True is an int.
        if type(cell) is not int or not 0 <= cell < COLOURS:
            value = json.dumps(cell)[:40]
            return f", column {column}: {value} is no colour, an integer 0..{COLOURS - 1}"
    return None


def kind_of(content: object) -> str:
    """Returns the JSON type of a value, in words."""
    match content:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a string"
        case bool():
            return "a boolean"
        case _:
            return "a number"
