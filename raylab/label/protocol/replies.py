"""Reads replies: the JSON object in each, validated, with every repair; judges reports.

Nothing is guessed: a score out of range, an unknown verdict or two contradictory labels make a
reply unreadable, and the protocol asks once more.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import ValidationError

from raylab.label.codebooks.codebook import (
    FORMAT,
    SYNTHESIS,
    AnswerForm,
    ChoiceReply,
    Criterion,
    Label,
    ReplyModel,
    ReplyReading,
    ReportReply,
    Verdict,
    clean,
    drop_asides,
    quote,
)
from raylab.label.config.sections import ProtocolConfig
from raylab.label.protocol.outcome import Evaluation, Format

JsonObject = dict[str, Any]
R = TypeVar("R", bound=ReplyModel)

MAX_REPLY = 200_000
"""Most characters of a reply that is read; a longer one is a runaway."""
OBJECTS_TRIED = 50
"""Places in a text that are tried as the start of a JSON object."""
JSON_OBJECT = re.compile(r'\{\s*"')
BARE = r"[\s\ufeff`*.]*+(?:json\s*+)?+"
WHOLE = re.compile(rf"({BARE}\0)++{BARE}", re.IGNORECASE)
"""A reply that is an object and at most the fence of a block of code; NUL stands for an object."""
APART = re.compile(
    rf"{BARE}\0[ \t*`.]*+(\n.*)?|(.*\n)?[ \t>*`]*+\0{BARE}", re.DOTALL | re.IGNORECASE
)
"""A reply that begins or ends with an object on lines of its own."""
CUT_OFF = {
    "length": "it was cut off at max_tokens",
    "content_filter": "the server withheld it (content_filter)",
}
"""Why a reply without a whole object has none, by the server's reason to stop."""
PASS_FROM = 85
WEAK_PASS_FROM = 70
TOP = {Verdict.PASS: 100, Verdict.WEAK_PASS: PASS_FROM - 1, Verdict.FAIL: WEAK_PASS_FROM - 1}
"""The highest score of the band that a verdict names."""


class UnreadableError(Exception):
    """A reply that cannot be read; the message completes "it cannot be used: ..."."""


def read_reply(
    form: AnswerForm, kind: type[R], text: str, finish_reason: str = "stop", shown: str = ""
) -> tuple[R, list[str]]:
    """Reads a reply and returns it with the repairs that were needed.

    A reply without a JSON object is read as the bare text of its label, if it has one.

    Args:
        shown: What the model was shown, which it may quote.

    Raises:
        UnreadableError: The reply is empty, cut off, or not of this form.
    """
    text, reading, keys = clean(text), ReplyReading(form), form.keys(kind)
    cut = CUT_OFF.get(finish_reason)
    if len(text) > MAX_REPLY:
        raise UnreadableError(f"it has {len(text):,} characters")
    if not text.strip():
        raise UnreadableError(f"it is empty, {cut}" if cut else "it is empty")
    try:
        answer, values = _find_object(text, keys, shown, reading.repairs)
        if values is None and (cut or form.key not in keys):
            raise UnreadableError(cut or "it holds no JSON object")
        if values is None:
            reading.repairs.append("no JSON object: read as prose")
            values = {form.reason: answer, form.key: answer}
        return _validate(kind, values, keys, reading), reading.repairs
    except RecursionError:
        raise UnreadableError("it nests too deep") from None


def settle(
    form: AnswerForm, reply: ChoiceReply, repairs: list[str], shown: Mapping[str, Label]
) -> tuple[ChoiceReply, list[str]]:
    """Returns an adjudicator's reply with its choice of a label and the final label.

    The final label decides: one that no candidate has, or with other attributes, is a synthesis. A
    candidate whose label is only given in part keeps its own.

    Args:
        shown: The labels as they were shown, by their places: `first`, `second` and so on.

    Raises:
        UnreadableError: There is no choice or no reason, or choice and label contradict.
    """
    if reply.choice not in (None, *shown, SYNTHESIS):
        expected = " or ".join([", ".join(map(repr, shown)), repr(SYNTHESIS)])
        raise UnreadableError(f"choice is {quote(reply.choice)}: Input should be {expected}")
    if not reply.rationale:
        raise UnreadableError("it gives no reason for the choice")
    named = shown.get(reply.choice or SYNTHESIS)
    if reply.label is None:
        if named is None:
            raise UnreadableError(f"{form.key} is missing")
        note = "no final line: that of the chosen candidate taken"
        return reply.model_copy(update={"label": named}), [*repairs, note]
    compositions = {candidate.composition for candidate in shown.values()}
    if named is not None and reply.label.composition in compositions - {named.composition}:
        raise UnreadableError(
            f"choice is {reply.choice}, and its line is that of another candidate"
        )
    equal = [
        place
        for place, candidate in shown.items()
        if reply.label == candidate
        or (
            # It may be given in part: composed alike, with no attribute that the candidate lacks.
            reply.choice in (None, place)
            and reply.label.composition == candidate.composition
            and reply.label.fields.items() <= candidate.fields.items()
        )
    ]
    choice = reply.choice if reply.choice in equal else next(iter(equal), SYNTHESIS)
    if "choice" in form.keys(ChoiceReply) and reply.choice != choice:
        repairs = [*repairs, f"choice {reply.choice or 'missing'}: its line makes it {choice}"]
    label = shown.get(choice, reply.label)
    return reply.model_copy(update={"choice": choice, "label": label}), repairs


# The judgement of a report


def judge(
    report: ReportReply, form: Format, rules: ProtocolConfig, criteria: Sequence[Criterion]
) -> Evaluation:
    """Returns the evaluation that follows from a report.

    The score is lowered to the cap of each issue and to the band of the verdict; the verdict is
    lowered to the band of that score. If a report contradicts itself, its worse half counts. The
    bands are PASS from 85 and WEAK_PASS from 70, or from the threshold if that is lower.

    Args:
        form: The format of the answer; the criterion `format` is unmet unless it is strict.
        rules: The lowest score of an acceptable label, and whether anything is lowered.
    """
    limits = {
        f"issue {criterion.name}": criterion.cap
        for criterion in criteria
        if criterion.cap is not None and criterion.name in report.issues
    }
    score, verdict, caps = report.score, report.verdict, list[str]()
    if rules.score_caps:
        for why, limit in (*limits.items(), (f"verdict {verdict}", TOP[verdict])):
            if score > limit:
                score = limit
                caps.append(f"{why}: at most {limit}")
        band = _band(score, min(WEAK_PASS_FROM, rules.threshold))
        verdict = max(verdict, band, key=list(Verdict).index)
    unmet = {*report.issues} | ({FORMAT.name} if form != "strict" else set[str]())
    failed = report.verdict is Verdict.FAIL
    return Evaluation(
        verdict=verdict,
        raw_verdict=report.verdict,
        score=score,
        raw_score=report.score,
        issues=tuple(criterion.name for criterion in criteria if criterion.name in unmet),
        summary=report.summary,
        contradictory=report.verdict is not _band(report.score, WEAK_PASS_FROM)
        or (not unmet if failed else bool(limits)),
        caps=tuple(caps),
        acceptable=verdict is not Verdict.FAIL and score >= rules.threshold,
    )


def judge_unparsable(problem: str) -> Evaluation:
    """Returns the evaluation of an answer without a label: score 0, without asking an evaluator."""
    return Evaluation(
        verdict=Verdict.FAIL,
        score=0,
        raw_score=0,
        issues=(FORMAT.name,),
        summary="",
        contradictory=False,
        caps=(f"no code could be read, {problem}: 0",),
        acceptable=False,
    )


def _band(score: int, weak_pass_from: int) -> Verdict:
    if score >= PASS_FROM:
        return Verdict.PASS
    return Verdict.WEAK_PASS if score >= weak_pass_from else Verdict.FAIL


# The object in a reply


def _find_object(
    text: str, keys: Collection[str], shown: str, repairs: list[str]
) -> tuple[str, JsonObject | None]:
    """Returns the answer in a reply, without its asides, and its own JSON object, if any.

    That is the whole answer, or has all keys and begins or ends it, on lines of its own, and is
    nothing that the model was shown. Any other object may be a quotation.
    """
    with suppress(ValueError):
        whole = DECODER.decode(text)
        if isinstance(whole, dict):
            return text, whole
    answer = drop_asides(text).strip()
    if answer != text.strip():
        repairs.append("thoughts or quoted material ignored")
    objects = [each for each in _objects(answer) if set(keys) & each[0].keys()]
    if not objects:
        return answer, None
    if not WHOLE.fullmatch(_mask(answer, objects)):
        material = _squeeze(shown)
        objects = [
            (values, span)
            for values, span in objects
            if set(keys) <= values.keys() and _squeeze(answer[span]) not in material
        ]
        if not APART.fullmatch(_mask(answer, objects)):
            raise UnreadableError("it holds a JSON object that may be a quotation")
    if any(values != objects[0][0] for values, _ in objects):
        raise UnreadableError(f"it holds {len(objects)} JSON objects that differ")
    repairs.append("text around the JSON object ignored")
    return answer, objects[0][0]


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _mask(text: str, objects: Sequence[tuple[JsonObject, slice]]) -> str:
    """Returns a text without NUL with that for each object."""
    for _, span in reversed(objects):
        text = f"{text[: span.start]}\0{text[span.stop :]}"
    return text


def _objects(text: str) -> Iterator[tuple[JsonObject, slice]]:
    """Yields the JSON objects in a text and their places, in time linear in its length."""
    end = tries = 0
    for opening in JSON_OBJECT.finditer(text):
        if opening.start() >= end and (tries := tries + 1) <= OBJECTS_TRIED:
            with suppress(ValueError):
                value, end = DECODER.raw_decode(text, opening.start())
                yield value, slice(opening.start(), end)


def _read_pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise UnreadableError("it gives a key twice in one object")
    return values


DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_read_pairs)


def _validate(
    kind: type[R], values: JsonObject, keys: Mapping[str, str], reading: ReplyReading
) -> R:
    """Returns the reply with these values; notes keys that were not asked for, or are missing."""
    if extra := sorted(values.keys() - keys.keys()):
        reading.repairs.append(f"unknown keys ignored: {quote(', '.join(extra))}")
    if missing := [key for key in keys if values.get(key) is None]:
        reading.repairs.append(f"keys not given: {', '.join(missing)}")
    named = {keys[key]: values[key] for key in keys if values.get(key) is not None}
    try:
        return kind.model_validate(named, context=reading)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = next(key for key, name in keys.items() if name == first["loc"][0])
        if first["type"] == "missing":
            raise UnreadableError(f"{key} is missing") from None
        cause = first.get("ctx", {}).get("error", first["msg"])
        raise UnreadableError(f"{key} is {quote(first['input'])}: {cause}") from None
