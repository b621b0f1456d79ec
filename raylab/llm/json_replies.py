"""The reading of the JSON object in a reply: strict where possible, recording every repair."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

JsonObject = dict[str, Any]

OBJECTS_TRIED = 200
"""Places in a text that are tried as the start of a JSON object."""
PASSES = 4
"""How often a text is read in all these tries together; most of them end after a few characters."""
DEEPEST = 64
"""Deepest nesting of a JSON object that is read."""
QUOTED = 60
"""Longest quotation of a value, in characters."""
ASIDE = re.compile(r"<(?P<end>/?)(?P<name>think|thinking|reasoning|(?P<fence>\w+ id=[0-9a-f]{8}))>")
"""Start or end of text that is no part of an answer: thoughts, or a copy of fenced material."""
JSON_OBJECT = re.compile(r'\{\s*"')
LONE_OR_NUL = re.compile("[\ud800-\udfff\0]")


class UnreadableError(Exception):
    """A reply that cannot be read; the message completes "it cannot be used: ..."."""


def clean(text: str) -> str:
    """Returns the text with U+FFFD for NUL and lone surrogates, which no database stores."""
    return LONE_OR_NUL.sub("\ufffd", text)


def find_object(
    text: str, keys: Iterable[str], repairs: list[str]
) -> tuple[str, JsonObject | None]:
    """Returns the answer in a reply, without its asides, and the JSON object in it, if any.

    Raises:
        UnreadableError: The reply holds several different objects, one of which may be quoted.
    """
    twice: set[str] = set()
    decoder = json.JSONDecoder(
        strict=False, object_pairs_hook=lambda pairs: _without_doubles(pairs, twice)
    )
    answer, whole = text, _decode(decoder, text)
    if whole is None:
        answer = _drop_asides(text)
        if answer != text:
            repairs.append("thoughts or quoted material ignored")
        objects = (one for _, _, one in json_objects(answer, decoder))
        found = [one for one in objects if set(keys) & one.keys()]
        if any(one != found[0] for one in found):
            raise UnreadableError(f"it holds {len(found)} JSON objects that differ")
        if found:
            repairs.append("text around the JSON object ignored")
            whole = found[0]
    if twice:
        repairs.append(f"keys given twice, the last taken: {quoted(', '.join(sorted(twice)))}")
    return answer, whole


def _decode(decoder: json.JSONDecoder, text: str) -> JsonObject | None:
    """Returns the text as a JSON object; None if it is anything else."""
    try:
        whole = decoder.decode(text)
    except (ValueError, RecursionError):
        return None
    return cast(JsonObject, whole) if isinstance(whole, dict) and not _is_deep(whole) else None


def json_objects(text: str, decoder: json.JSONDecoder) -> Iterator[tuple[int, int, JsonObject]]:
    """Yields the JSON objects in a text with their starts and ends, in time linear in its length.

    Objects that nest deeper than `DEEPEST` are left out.
    """
    left, tries, end = PASSES * len(text), OBJECTS_TRIED, 0
    for opening in JSON_OBJECT.finditer(text):
        start = opening.start()
        if start < end:
            continue
        if left <= 0 or tries == 0:
            return
        tries -= 1
        try:
            found, end = decoder.raw_decode(text, start)
        except RecursionError:
            return
        except ValueError as error:
            left -= getattr(error, "pos", len(text)) - start
            continue
        if not _is_deep(found):
            yield start, end, cast(JsonObject, found)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inner(outer)]
    return bool(level)


def _inner(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast(JsonObject, value).values()
    return cast(list[object], value) if isinstance(value, list) else ()


def _without_doubles(pairs: list[tuple[str, Any]], twice: set[str]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice.update(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )
    return found


def _drop_asides(text: str) -> str:
    """Returns the text without thoughts, finished or not, and copies of fenced material."""
    tags = list(ASIDE.finditer(text))
    closed = {tag["name"]: tag.start() for tag in tags if tag["end"]}
    kept, place, inside = list[str](), 0, None
    for tag in tags:
        if tag["end"]:
            if tag["name"] == inside:
                place, inside = tag.end(), None
        elif inside is None and (not tag["fence"] or closed.get(tag["name"], -1) > tag.start()):
            kept.append(text[place : tag.start()])
            inside = tag["name"]
    return "".join(kept if inside else [*kept, text[place:]])


def quoted(value: object) -> str:
    """Returns a value in quotation marks, cut to `QUOTED` characters."""
    text = value if isinstance(value, str) else dump(value)
    return repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}...")


def dump(value: object) -> str:
    """Returns a value as JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "a number or nesting too large to show"
