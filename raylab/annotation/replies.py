"""The reading of replies: the JSON object in one, validated, with a record of every repair.

Nothing is guessed: a score out of range, an unknown verdict or two contradictory labels make a
reply unreadable, and the protocol asks once more.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from raylab.codebook import (
    Choice,
    ChoiceReply,
    Criterion,
    Label,
    ReplyModel,
    ReplyReading,
    clean,
    quoted,
)

JsonObject = dict[str, Any]
R = TypeVar("R", bound=ReplyModel)

LONGEST_REPLY = 200_000
"""Longest reply that is read, in characters; a longer one is a runaway."""
OBJECTS_TRIED = 200
"""Places in a text that are tried as the start of a JSON object."""
PASSES = 4
"""How often a text is read in all these tries together; most of them end after a few characters."""
DEEPEST = 64
"""Deepest nesting of a JSON object that is read."""
ASIDE = re.compile(r"<(?P<end>/?)(?P<name>think|thinking|reasoning|(?P<fence>\w+ id=[0-9a-f]{8}))>")
"""Start or end of text that is no part of an answer: thoughts, or a copy of fenced material."""
JSON_OBJECT = re.compile(r'\{\s*"')
CUT_OFF = {
    "length": "it was cut off at max_tokens",
    "content_filter": "the server withheld it (content_filter)",
}
"""Why a reply without a whole object has none, by the server's reason to stop."""


class UnreadableError(Exception):
    """A reply that cannot be read; the message completes "it cannot be used: ..."."""


@dataclass(frozen=True)
class Settled:
    """An adjudicator's decision.

    Attributes:
        choice: first or second, as shown, or synthesis.
        label: The final label.
        rationale: The reasons for it; never empty.
    """

    choice: Choice
    label: Label
    rationale: str


def read_reply(
    model: type[R], text: str, finish_reason: str = "stop", criteria: Iterable[Criterion] = ()
) -> tuple[R, list[str]]:
    """Reads a reply and returns it with the repairs that were needed.

    A reply without a JSON object is read as the bare text of its label, if it has one.

    Args:
        model: The form of the reply.
        text: The reply.
        finish_reason: The reason why the server stopped.
        criteria: The criteria that issues may name, in the order of reports.

    Raises:
        UnreadableError: The reply is empty, cut off, or not of this form.
    """
    text = clean(text)
    if len(text) > LONGEST_REPLY:
        raise UnreadableError(f"it has {len(text):,} characters")
    if not text.strip():
        cut = CUT_OFF["length"] if finish_reason == "length" else ""
        raise UnreadableError(", ".join(filter(None, ("it is empty", cut))))
    reading = ReplyReading(tuple(criteria))
    keys = model.keys_asked()
    answer, values = _find_object(text, keys, reading.repairs)
    if values is None and finish_reason in CUT_OFF:
        raise UnreadableError(CUT_OFF[finish_reason])
    if values is None and "label" not in model.model_fields:
        raise UnreadableError("it holds no JSON object")
    if values is None:
        reading.repairs.append("no JSON object: read as prose")
        values = {model.key_of("rationale"): answer, model.key_of("label"): answer}
    else:
        values = _with_keys_in_order(values, keys, reading)
    return _validated(model, values, reading), reading.repairs


def settle(
    reply: ChoiceReply, repairs: list[str], shown: Mapping[Choice, Label]
) -> tuple[Settled, list[str]]:
    """Returns an adjudicator's decision between two labels, with the repairs.

    The final label decides: with other roots or attributes than those of the candidate that the
    reply names, it is a synthesis. A candidate whose label is only given in part keeps its own.

    Args:
        reply: The adjudicator's reply.
        repairs: The repairs so far.
        shown: The labels of `first` and `second`, as they were shown.

    Raises:
        UnreadableError: There is no choice or no reason, or choice and label contradict.
    """
    if not reply.rationale:
        raise UnreadableError("it gives no reason for the choice")
    named, label = reply.choice, reply.label
    chosen = None if named is None else shown.get(named)
    if named is not None and chosen is not None and (label is None or _restates(label, chosen)):
        note = ["no final line: that of the chosen candidate taken"] if label is None else []
        return Settled(named, chosen, reply.rationale), [*repairs, *note]
    if label is None:
        raise UnreadableError(f"{type(reply).key_of('label')} is missing")
    compositions = {candidate.composition for candidate in shown.values()}
    if chosen is not None and label.composition in compositions - {chosen.composition}:
        raise UnreadableError(f"choice is {named}, and its line is that of the other candidate")
    choice = _choice_by_label(label, shown, partly=named is None)
    if "choice" in type(reply).keys_asked() and named != choice:
        named_so = f"choice {named}" if named else "no choice named"
        repairs = [*repairs, f"{named_so}: its line makes it {choice}"]
    return Settled(choice, shown.get(choice, label), reply.rationale), repairs


def _choice_by_label(label: Label, shown: Mapping[Choice, Label], partly: bool) -> Choice:
    for choice, candidate in shown.items():
        if label == candidate or (partly and _restates(label, candidate)):
            return choice
    return "synthesis"


def _restates(label: Label, candidate: Label) -> bool:
    """Returns True if a label has the roots of a candidate, and no attribute that it lacks."""
    same = label.composition == candidate.composition
    return same and label.fields.items() <= candidate.fields.items()


def _with_keys_in_order(
    values: JsonObject, keys: tuple[str, ...], reading: ReplyReading
) -> JsonObject:
    """Returns the values at the keys that are asked for, and notes all that is not as asked."""
    if extra := sorted(values.keys() - set(keys)):
        reading.repairs.append(f"unknown keys ignored: {quoted(', '.join(extra))}")
    order = [key for key in values if key in keys]
    if order != [key for key in keys if key in values]:
        reading.repairs.append(f"keys in another order: {quoted(', '.join(order))}")
    if missing := [key for key in keys if values.get(key) is None]:
        reading.repairs.append(f"keys not given: {', '.join(missing)}")
    return {key: values[key] for key in order if values[key] is not None}


def _validated(model: type[R], values: JsonObject, reading: ReplyReading) -> R:
    try:
        return model.model_validate(values, context=reading)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = first["loc"][0]
        if first["type"] == "missing":
            raise UnreadableError(f"{key} is missing") from None
        cause = first.get("ctx", {}).get("error", first["msg"])
        raise UnreadableError(f"{key} is {quoted(first['input'])}: {cause}") from None


# The object in a reply


def _find_object(
    text: str, keys: Iterable[str], repairs: list[str]
) -> tuple[str, JsonObject | None]:
    """Returns the answer in a reply, without its asides, and the JSON object in it, if any.

    Raises:
        UnreadableError: The reply holds several different objects, one of which may be quoted.
    """
    twice: set[str] = set()

    def without_doubles(pairs: list[tuple[str, Any]]) -> JsonObject:
        counts = Counter(name for name, _ in pairs)
        twice.update(name for name, count in counts.items() if count > 1)
        return dict(pairs)

    decoder = json.JSONDecoder(strict=False, object_pairs_hook=without_doubles)
    answer, whole = text, _decode(decoder, text)
    if whole is None:
        answer = _drop_asides(text).strip()
        if answer != text.strip():
            repairs.append("thoughts or quoted material ignored")
        every = json_objects(answer, decoder)
        objects = [values for values in every if set(keys) & values.keys()]
        if any(values != objects[0] for values in objects):
            raise UnreadableError(f"it holds {len(objects)} JSON objects that differ")
        if objects:
            repairs.append("text around the JSON object ignored")
            whole = objects[0]
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


def json_objects(text: str, decoder: json.JSONDecoder) -> Iterator[JsonObject]:
    """Yields the JSON objects in a text, in time linear in its length.

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
            value, end = decoder.raw_decode(text, start)
        except RecursionError:
            return
        except ValueError as error:
            left -= getattr(error, "pos", len(text)) - start
            continue
        if not _is_deep(value):
            yield cast(JsonObject, value)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inner(outer)]
    return bool(level)


def _inner(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast(JsonObject, value).values()
    return cast(list[object], value) if isinstance(value, list) else ()


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
