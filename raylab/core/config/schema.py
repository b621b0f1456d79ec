"""The keys of a configuration model, and its validation errors and differences by key.

Everything is read from the JSON schema that pydantic makes of the model.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from raylab.core.printable import redact

MAX_VALUE = 200
"""Most characters of a wrong value or key that an error shows."""

MAX_PROBLEMS = 20
"""Most problems that an error lists: each unknown key is compared with all that there are."""

WORDS = {
    **dict.fromkeys(("string_type", "string_sub_type"), "should be text"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "should be true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "should be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
    **dict.fromkeys(("list_type", "tuple_type"), "should be a list, as in [a, b]"),
    **dict.fromkeys(("dict_type", "model_type"), "should have keys, as in {{key: value}}"),
    "string_too_short": "should not be empty",
    "string_too_long": "should have at most {max_length:,} characters",
    "too_short": "should have at least {min_length}",
    "too_long": "should have at most {max_length}",
    "greater_than_equal": "should be at least {ge}",
    "less_than_equal": "should be at most {le}",
    "missing": "is needed",
    "extra_forbidden": "is not asked for",
    "string_pattern_mismatch": "should be a name of letters, digits and . _ -",
}
"""What a value should be, by the type of pydantic's error and with the values of its context."""
BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
JsonSchema = dict[str, Any]
Keys = tuple[int | str, ...]


@dataclass(frozen=True)
class ConfigKey:
    """One configuration key.

    Attributes:
        path: Dotted path, as on the command line.
        type: Type of its values; empty for a section, which holds keys of its own.
        default: Default value; None for a section.
        doc: Meaning of the key.
        variant: The only choice that has this key, such as `model.architecture=champion`.
    """

    path: str
    type: str
    default: object
    doc: str
    variant: str | None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class ConfigProblem:
    """A mistake in a configuration.

    Attributes:
        keys: The keys and indices of its place, the first one dotted where a user wrote it so; none
            if it concerns no single key.
        text: The mistake, worded to follow the place.
    """

    keys: Keys
    text: str

    def __str__(self) -> str:
        """Returns the problem on one line."""
        return f"{_cut(_join_keys(self.keys))}: {self.text}" if self.keys else self.text


def list_keys(kind: type[BaseModel]) -> list[ConfigKey]:
    """Returns every key of the model and its sections, in the order of definition."""
    return list(_Schema(kind).keys())


def explain_errors(kind: type[BaseModel], error: ValidationError) -> list[ConfigProblem]:
    """Translates pydantic's error of `kind` into problems of its keys, the first ones of many."""
    schema, errors = _Schema(kind), error.errors(include_url=False)
    places = [schema.locate(each["loc"]) for each in errors[:MAX_PROBLEMS]]
    problems = list[ConfigProblem]()
    for (keys, siblings, is_choice), each in zip(places, errors, strict=False):
        # An error inside one of several types shows that this type was meant.
        below = (other for other, *_ in places if other[: len(keys)] == keys)
        if each["type"] == "too_short" and each["input"]:
            # The list is too short only because its items have errors of their own.
            continue
        if is_choice and any(len(other) > len(keys) for other in below):
            continue
        message = explain(each)
        match each["type"]:
            case "extra_forbidden":
                message = _unknown_key(schema, _join_keys(keys), siblings)
            case "missing" | "value_error":
                pass
            case "union_tag_invalid" | "union_tag_not_found":
                # The message has the value.
                message = _cut(redact(message))
            case _:
                message = f"given {_cut(redact(json.dumps(each['input'])))}, {message}"
        if is_choice and problems and problems[-1].keys == keys:
            way = explain(each).removeprefix("should ")
            message = f"{problems.pop().text} or {way}"
        problems.append(ConfigProblem(keys, message))
    if (more := len(errors) - MAX_PROBLEMS) > 0:
        problems.append(ConfigProblem((), f"and {more:,} more"))
    return problems


def explain(error: ErrorDetails) -> str:
    """Returns what a value should be, in words for people who know no Python."""
    if (words := WORDS.get(error["type"])) is not None:
        return words.format(**error.get("ctx", {}))
    return re.sub(r"^(Value error, |\w+ (?=should ))", "", error["msg"])


class _Schema:
    def __init__(self, kind: type[BaseModel]) -> None:
        self._root: JsonSchema = kind.model_json_schema()
        self._definitions: JsonSchema = self._root.get("$defs", {})

    def locate(self, location: Sequence[int | str]) -> tuple[Keys, tuple[str, ...], bool]:
        """Returns the keys of the place of an error, and all keys of their last section.

        True comes with them if the error is that of one of several types of the last key.
        """
        node, keys = self._root, list[int | str]()
        siblings: tuple[str, ...] = ()
        is_choice = False
        for key in location:
            if "discriminator" in node:
                node = self.resolve({"$ref": node["discriminator"]["mapping"][key]})
                continue
            types = [each for each in node.get("anyOf", ()) if each != {"type": "null"}]
            if is_choice := len(types) > 1:
                # The key is the name of a type; the last type that is listed has keys.
                node = self.resolve(types[-1])
                continue
            if key == "[key]":
                break
            keys.append(key)
            siblings = tuple(node.get("properties", ()))
            if isinstance(key, str):
                child = node.get("properties", {}).get(key) or _additional(node)
            else:
                prefix = node.get("prefixItems", [])
                child = prefix[key] if key < len(prefix) else node.get("items", {})
            node = self.resolve(child)
        return tuple(keys), siblings, is_choice

    def resolve(self, node: JsonSchema) -> JsonSchema:
        """Returns the node with its reference followed; for `X | None` the node of X."""
        if "$ref" in node:
            return {**self._definitions[node["$ref"].rsplit("/", 1)[-1]], **node}
        options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
        return {**node, **self.resolve(options[0])} if len(options) == 1 else node

    def keys(
        self, section: JsonSchema | None = None, prefix: str = "", variant: str | None = None
    ) -> Iterator[ConfigKey]:
        """Yields the keys of a section, by default the whole, with this prefix of their paths."""
        for name, child in (section or self._root)["properties"].items():
            node, path = self.resolve(child), prefix + name
            doc = node.get("description", "")
            if "discriminator" in node:
                below = self._variants(node, path)
            elif "properties" in node:
                below = self.keys(node, f"{path}.", variant)
            elif "properties" in (entry := self.resolve(_additional(node))):
                below = self.keys(entry, f"{path}.<name>.", variant)
            else:
                yield ConfigKey(path, self._type(child), child.get("default"), doc, variant)
                continue
            yield ConfigKey(path, "", None, doc, variant)
            yield from below

    def _variants(self, node: JsonSchema, path: str) -> Iterator[ConfigKey]:
        tag = node["discriminator"]["propertyName"]
        members = [self.resolve(option) for option in node["oneOf"]]
        choices = [member["properties"][tag]["const"] for member in members]
        default = node.get("default", {}).get(tag)
        yield ConfigKey(
            f"{path}.{tag}", " | ".join(choices), default, node.get("description", ""), None
        )
        for choice, member in zip(choices, members, strict=True):
            for key in self.keys(member, f"{path}.", f"{path}.{tag}={choice}"):
                if key.name != tag:
                    yield key

    def _type(self, child: JsonSchema) -> str:
        if "anyOf" in child:
            return " | ".join(self._type(option) for option in child["anyOf"])
        node = self.resolve(child)
        if "discriminator" in node:
            return " | ".join(node["discriminator"]["mapping"])
        if "enum" in node:
            return " | ".join(map(str, node["enum"]))
        if "const" in node:
            return str(node["const"])
        if "prefixItems" in node:
            return f"[{', '.join(map(self._type, node['prefixItems']))}]"
        if "items" in node:
            return f"list of {self._type(node['items'])}"
        if node.get("type") == "boolean":
            return "true | false"
        bounds = (f" {symbol} {node[name]:g}" for name, symbol in BOUNDS.items() if name in node)
        return f"{node.get('format') or node.get('type', 'any')}{''.join(bounds)}"


def _additional(node: JsonSchema) -> JsonSchema:
    """Returns the schema of the values of free keys; empty if there are none, or any value fits."""
    schema = node.get("additionalProperties")
    return cast(JsonSchema, schema) if isinstance(schema, dict) else {}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def _join_keys(keys: Keys) -> str:
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return path.removeprefix(".")


def _unknown_key(schema: _Schema, path: str, siblings: Sequence[str]) -> str:
    parent, _, name = path.rpartition(".")
    keys = list(schema.keys())
    listed = f"keys of {parent or 'this job'}: {', '.join(siblings)}"
    if elsewhere := [key.variant for key in keys if key.path == path and key.variant]:
        return f"a key of {', '.join(elsewhere)} alone; {listed}"
    if close := difflib.get_close_matches(name, siblings, 1):
        return f"unknown key; did you mean {parent and parent + '.'}{close[0]}?"
    names = difflib.get_close_matches(name, [key.name for key in keys], 1)
    paths = dict.fromkeys(key.path for key in keys if key.name in names)
    return f"unknown key; did you mean {' or '.join(paths)}?" if paths else f"unknown key; {listed}"


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a configuration by their dotted keys, in lists of sections by place."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
            value = {str(place): each for place, each in enumerate(cast("list[Any]", value))}
        if isinstance(value, dict):
            values |= flatten(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns a line for each key with another value, or in another place, in the run than now."""
    had, has = flatten(before), flatten(now)
    lines = [
        f"\n  {key}: the run has {had.get(key, 'nothing')}, now {has.get(key, 'nothing')}"
        for key in sorted(had.keys() | has.keys())
        if had.get(key, ...) != has.get(key, ...)
    ]
    if not lines:
        # The labels of a codebook may be grades.
        moved = (pair for pair in zip(had, has, strict=True) if pair[0] != pair[1])
        lines = [f"\n  the order: the run has {old}, where {new} is now" for old, new in moved][:1]
    return "".join(lines)
