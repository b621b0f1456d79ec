"""The reading of the JSON object in a reply: strict where possible, recording every repair."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

JsonObject = dict[str, Any]

OBJECTS_TRIED = 200
"""Places in a reply that are tried as the start of a JSON object."""
QUOTED = 60
"""Longest quotation of a value, in characters."""
ASIDE = re.compile(r"<(?P<name>think|thinking|reasoning)>|<(?P<fence>\w+ id=[0-9a-f]{8})>")
"""The start of text that is no part of an answer: thoughts, or a copy of fenced material."""
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
        found = [one for one in _objects(decoder, answer) if set(keys) & one.keys()]
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


def _drop_asides(text: str) -> str:
    """Returns the text without thoughts, finished or not, and copies of fenced material."""
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
    """Returns a value in quotation marks, cut to `QUOTED` characters."""
    text = value if isinstance(value, str) else dump(value)
    return repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}...")


def dump(value: object) -> str:
    """Returns a value as JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "a number or nesting too large to show"
