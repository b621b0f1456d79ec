"""The JSON object in what a model replied: strictly where possible, every repair on record."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

JsonObject = dict[str, Any]

OBJECTS_TRIED = 200
"""Places in a reply where a JSON object is looked for."""
QUOTED = 60
"""Characters of a value that a problem quotes."""
ASIDE = re.compile(r"<(?P<name>think|thinking|reasoning)>|<(?P<fence>\w+ id=[0-9a-f]{8})>")
"""Opens what is no part of an answer: thoughts before it, or a copy of fenced material."""
LONE_OR_NUL = re.compile("[\ud800-\udfff\0]")


class UnreadableError(Exception):
    """A reply that cannot be read; the message completes "it cannot be used: ..."."""


def clean(text: str) -> str:
    """Returns the text with U+FFFD for NUL and lone surrogates, which no database takes."""
    return LONE_OR_NUL.sub("\ufffd", text)


def find_object(
    text: str, keys: Iterable[str], repairs: list[str]
) -> tuple[str, JsonObject | None]:
    """Returns the answer in a reply, without its asides, and the JSON object that it is or holds.

    Raises:
        UnreadableError: It holds objects that differ: one may be quoted, and which is not said.
    """
    twice: set[str] = set()
    decoder = json.JSONDecoder(
        strict=False, object_pairs_hook=lambda pairs: _without_doubles(pairs, twice)
    )
    answer, whole = text, _decoded(decoder, text)
    if whole is None:
        answer = _without_asides(text)
        if answer != text:
            repairs.append("thoughts or quoted material ignored")
        found = [one for one in _objects(decoder, answer) if set(keys) & one.keys()]
        if any(one != found[0] for one in found):
            raise UnreadableError(f"it holds {len(found)} JSON objects that differ")
        if found:
            repairs.append("text around the JSON object ignored")
            whole = found[0]
    if twice:
        repairs.append(f"keys given twice, the last taken: {quoted(', '.join(sorted(twice)))}")
    return answer, whole


def _decoded(decoder: json.JSONDecoder, text: str) -> JsonObject | None:
    """The object that a text is; None if it is anything else."""
    try:
        whole = decoder.decode(text)
    except (ValueError, RecursionError):
        return None
    return cast(JsonObject, whole) if isinstance(whole, dict) else None


def _objects(decoder: json.JSONDecoder, text: str) -> Iterator[JsonObject]:
    start = text.find("{")
    for _ in range(OBJECTS_TRIED):
        if start < 0:
            return
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield cast(JsonObject, found)
        start = text.find("{", end)


def _without_doubles(pairs: list[tuple[str, Any]], twice: set[str]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice.update(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )
    return found


def _without_asides(text: str) -> str:
    """The text without thoughts, also unfinished ones, and without copies of fenced material."""
    kept, place, unclosed = list[str](), 0, set[str]()
    for opening in ASIDE.finditer(text):
        closing = f"</{opening['name'] or opening['fence']}>"
        if opening.start() < place or closing in unclosed:
            continue
        end = text.find(closing, opening.end())
        if end < 0 and opening["fence"]:
            unclosed.add(closing)
            continue
        kept.append(text[place : opening.start()])
        place = end + len(closing) if end >= 0 else len(text)
    return "".join([*kept, text[place:]])


def quoted(value: object) -> str:
    """Returns a value as a problem quotes it, cut where it is long."""
    text = value if isinstance(value, str) else dumped(value)
    return repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}...")


def dumped(value: object) -> str:
    """Returns a value as JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "a number or nesting too large to show"
