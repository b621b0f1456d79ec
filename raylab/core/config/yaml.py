"""YAML 1.2 from outside: the file of `--config`, and codebooks.

Time and memory grow with the size of the text alone, because nothing in it stands for more: aliases
are refused, and nesting is bounded while the text is scanned.
"""

import os
import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError, MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner

from raylab.core.bounded import read_file
from raylab.core.errors import ConfigError, DataError

MAX_BYTES = 1 << 18
"""Longest file that is read."""
MAX_DEPTH = 100
"""Deepest nesting of values."""
MAX_REASON = 300
"""Most characters of the library's error, which may quote the input."""
WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
"""The values of plain words. Others, such as `yes` and `no`, are text."""
WHOLE = r"[-+]?(0|[1-9][0-9]*)"
"""A whole number. With leading zeros it is text, such as the task id 00576224."""
WAYS_OUT = {
    "mapping values are not allowed here": ": put a text that has a colon in quotation marks",
    "found character '\\t' that cannot start any token": ": indent with blanks, not tabs",
}
"""The ways out of the library's commonest errors."""
INTEGER = re.compile(WHOLE)
NUMBER = re.compile(rf"({WHOLE}(\.[0-9]*)?|[-+]?\.[0-9]+)([eE][-+]?[0-9]+)?")

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Yaml:
    """A YAML document.

    Attributes:
        value: Its value, of JSON's types: all keys are text.
        lines: The line of each value, by its keys and indices.
    """

    value: Any
    lines: dict[Path, int] = field(default_factory=dict[Path, int])


def read_yaml_file(path: str | os.PathLike[str]) -> Yaml:
    """Reads a YAML file on this machine; a `ConfigError` if it cannot be used."""
    where = os.fspath(path)
    try:
        content = read_file(path, MAX_BYTES)
    except DataError as error:
        raise ConfigError(str(error)) from error
    try:
        return read_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8: save it as such: {error}") from error
    except DataError as error:
        raise ConfigError(f"{where}: {error}") from error


def read_yaml(text: str) -> Yaml:
    """Reads a text in YAML, where quoted text and plain words that are no number are text.

    Raises:
        DataError: It is no YAML, is nested too deep, repeats a key, or has anchors, aliases or
            tags. The message has line and column.
    """
    parser = YAML(typ="safe", pure=True)
    parser.Scanner, parser.Composer, parser.max_depth = _Scanner, _Composer, MAX_DEPTH
    try:
        lines: dict[Path, int] = {}
        return Yaml(_value(parser.compose(text), (), lines), lines)
    except MaxDepthExceededError as error:
        problem = f"more than {MAX_DEPTH} values within each other: nest fewer"
        raise DataError(f"{_place(error.problem_mark)}: {problem}") from error
    except MarkedYAMLError as error:
        way_out = WAYS_OUT.get(str(error.problem), "")
        problem = f"{_place(error.problem_mark)}: {error.problem}{way_out}"
        raise DataError(problem[:MAX_REASON]) from error
    except (YAMLError, ValueError) as error:
        raise DataError(str(error).partition("\n")[0][:MAX_REASON]) from error


def plain_value(text: str) -> str | float | bool | None:
    """Returns the value of a text without quotes."""
    if INTEGER.fullmatch(text):
        # A ValueError if it has more digits than Python reads.
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else WORDS.get(text, text)


class _Scanner(Scanner):
    def fetch_flow_collection_start(self, *arguments: Any, **named: Any) -> None:
        """Scans a bracket; its time grows with those that are open."""
        if self.flow_level >= MAX_DEPTH:
            raise MaxDepthExceededError(None, None, None, self.reader.get_mark())
        super().fetch_flow_collection_start(*arguments, **named)


class _Composer(Composer):
    def compose_node(self, parent: Any, index: Any) -> Any:
        """Composes a value that is written out."""
        event = self.parser.peek_event()
        if event.anchor is not None:
            problem = f"the anchor or alias {event.anchor!r:.60}: write the value out"
        elif getattr(event, "ctag", None) is not None:
            problem = f"the tag {event.tag!r:.60}: leave it out"
        else:
            return super().compose_node(parent, index)
        raise ComposerError(None, None, problem, event.start_mark)


def _value(node: Node | None, path: Path, lines: dict[Path, int]) -> Any:
    if node is None:
        return None
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, SequenceNode):
        return [_value(item, (*path, place), lines) for place, item in enumerate(node.value)]
    if isinstance(node, ScalarNode):
        try:
            return plain_value(node.value) if node.style is None else node.value
        except ValueError:
            problem = f"a number of {len(node.value):,} digits: write fewer"
            raise ComposerError(None, None, problem, node.start_mark) from None
    values: dict[str, Any] = {}
    for key, value in node.value:
        name = key.value
        if not isinstance(key, ScalarNode):
            problem = "a list or mapping is no key: write a text"
            raise ComposerError(None, None, problem, key.start_mark)
        if name in values:
            problem = f"{name!r:.60} stands twice: remove or rename one"
            raise ComposerError(None, None, problem, key.start_mark)
        lines[*path, name] = key.start_mark.line + 1
        values[name] = _value(value, (*path, name), lines)
    return values


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "line 1"
