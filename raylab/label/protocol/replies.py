"""Reads replies: the JSON object in each, validated, with every repair; judges reports.

Nothing is guessed: a score out of range, an unknown verdict or two contradictory labels make a
reply unreadable, and the protocol asks once more.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

from raylab.core.errors import LabelError
from raylab.label.codebooks.codebook import (
    FORMAT,
    SYNTHESIS,
    AnswerForm,
    Criterion,
    Label,
    Verdict,
    clean,
    drop_asides,
    quote,
)
from raylab.label.config.jobs import ProtocolConfig
from raylab.label.protocol.outcome import Evaluation, Format

JsonObject = dict[str, Any]

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
SCORE = re.compile(r"([0-9]{1,3})(?:\.0*+)?\s*+(?:/\s*+100|%)?")
"""A score in a text, or a number with a point."""


class UnreadableError(Exception):
    """A reply that cannot be read; the message completes "it cannot be used: ..."."""


@dataclass(frozen=True)
class LabelReply:
    """An annotator's answer."""

    kind: ClassVar[str] = "classification"
    label: Label
    rationale: str = ""


@dataclass(frozen=True)
class ReportReply:
    """An evaluator's answer: score from 0 to 100, verdict, reasons, unmet criteria."""

    kind: ClassVar[str] = "evaluation"
    score: int
    verdict: Verdict
    summary: str = ""
    issues: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceReply:
    """An adjudicator's answer: one of the labels shown, or a label of its own.

    Attributes:
        choice: A place, or `SYNTHESIS`; `settle` checks whether it was shown.
    """

    kind: ClassVar[str] = "adjudication"
    rationale: str = ""
    choice: str | None = None
    label: Label | None = None


R = TypeVar("R", LabelReply, ReportReply, ChoiceReply)
REQUIRED = {LabelReply: {"label"}, ReportReply: {"score", "verdict"}, ChoiceReply: set[str]()}


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
    text, repairs, keys = clean(text), list[str](), form.keys(kind.kind)
    cut = CUT_OFF.get(finish_reason)
    if len(text) > MAX_REPLY:
        raise UnreadableError(f"it has {len(text):,} characters")
    if not text.strip():
        raise UnreadableError(f"it is empty, {cut}" if cut else "it is empty")
    try:
        answer, values = _find_object(text, keys, shown, repairs)
        # Prose that was cut off may have gone on to another label.
        if values is None and (cut or form.key not in keys):
            raise UnreadableError(cut or "it holds no JSON object")
        if values is None:
            repairs.append("no JSON object: read as prose")
            values = {form.reason: answer, form.key: answer}
        if extra := sorted(values.keys() - keys.keys()):
            repairs.append(f"unknown keys ignored: {quote(', '.join(extra))}")
        if missing := [key for key in keys if values.get(key) is None]:
            repairs.append(f"keys not given: {', '.join(missing)}")
        fields = dict[str, Any]()
        for key, name in keys.items():
            if (value := values.get(key)) is not None:
                try:
                    fields[name] = READERS[name](value, name, form, repairs)
                except (LabelError, ValueError) as error:
                    raise UnreadableError(f"{key} is {quote(value)}: {error}") from None
            elif name in REQUIRED[kind]:
                raise UnreadableError(f"{key} is missing")
        return kind(**fields), repairs
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
        raise UnreadableError(f"choice is {quote(reply.choice)}: should be {expected}")
    if not reply.rationale:
        raise UnreadableError("it gives no reason for the choice")
    named = shown.get(reply.choice or SYNTHESIS)
    if reply.label is None:
        if named is None:
            raise UnreadableError(f"{form.key} is missing")
        note = "no final line: that of the chosen candidate taken"
        return replace(reply, label=named), [*repairs, note]
    # A line of another candidate: nobody can tell whether it or the choice is meant.
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
    if "choice" in form.keys(ChoiceReply.kind) and reply.choice != choice:
        repairs = [*repairs, f"choice {reply.choice or 'missing'}: its line makes it {choice}"]
    label = shown.get(choice, reply.label)
    return replace(reply, choice=choice, label=label), repairs


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
    # Whether an answer needed repairs is known, so that no evaluator is asked about it.
    unmet = {*report.issues} | ({FORMAT.name} if form != "strict" else set[str]())
    # A FAIL without an issue contradicts itself, as does a pass with an issue that has a cap.
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
    # Each try reads up to an object's end, so all take time linear in the length of the text.
    objects, end, tries = list[tuple[JsonObject, slice]](), 0, 0
    for opening in JSON_OBJECT.finditer(answer):
        start = opening.start()
        if start >= end and (tries := tries + 1) <= OBJECTS_TRIED:
            with suppress(ValueError):
                value, end = DECODER.raw_decode(answer, start)
                if set(keys) & value.keys():
                    objects.append((value, slice(start, end)))
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


def _read_pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise UnreadableError("it gives a key twice in one object")
    return values


DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_read_pairs)


# The fields of a reply


def _read_label(value: Any, _: str, form: AnswerForm, repairs: list[str]) -> Label:
    if form.label["type"] == "string" and not isinstance(value, str):
        raise ValueError("should be text")
    return form.read(value, repairs)


def _read_text(value: Any, name: str, _: AnswerForm, repairs: list[str]) -> str:
    if not isinstance(value, str):
        repairs.append(f"{name} is no text: left out")
        return ""
    return clean(value).strip()


def _read_name(value: Any, name: str, _: AnswerForm, repairs: list[str]) -> str:
    """Reads a name of a short list in other letters, such as `weak pass`."""
    verdicts = " or ".join([", ".join(list(Verdict)[:-1]), list(Verdict)[-1]])
    expected = f"should be {verdicts}" if name == "verdict" else "should be text"
    if not isinstance(value, str):
        raise ValueError(expected)
    read = re.sub(r"[\s-]+", "_", value.strip())
    read = read.upper() if name == "verdict" else read.lower()
    if name == "verdict" and read not in list(Verdict):
        raise ValueError(expected)
    if read != value:
        repairs.append(f"{name} {quote(value)} read as {read}")
    return Verdict(read) if name == "verdict" else read


def _read_score(value: Any, _: str, form: AnswerForm, repairs: list[str]) -> int:
    """Reads a whole number in another form; not clamped, because 850 may mean 8.5 or 85."""
    text = value.strip() if isinstance(value, str) else repr(value)
    number = SCORE.fullmatch(text) if isinstance(value, str | int | float) else None
    if number is None or int(number[1]) > 100:
        raise ValueError("should be a whole number from 0 to 100")
    if text != number[1] or isinstance(value, str):
        repairs.append(f"score {quote(value)} read as {number[1]}")
    return int(number[1])


def _read_issues(value: Any, _: str, form: AnswerForm, repairs: list[str]) -> tuple[str, ...]:
    """Reads the unmet criteria, in the order of reports, without unknown ones."""
    items = re.split(r"[,;|\n]", value) if isinstance(value, str) else value
    names = [str(item) for item in cast(list[object], items)] if isinstance(items, list) else []
    meant = {name: each.name for each in form.criteria for name in (each.name, *each.synonyms)}
    unmet = {meant.get(name.strip(" \t\"'*").lower()) for name in names}
    issues = tuple(criterion.name for criterion in form.criteria if criterion.name in unmet)
    if value != names or set(names) != set(issues):
        repairs.append(f"issues {quote(value)} read as {', '.join(issues) or 'none'}")
    return issues


READERS: Mapping[str, Callable[[Any, str, AnswerForm, list[str]], Any]] = {
    "rationale": _read_text,
    "summary": _read_text,
    "label": _read_label,
    "issues": _read_issues,
    "score": _read_score,
    "choice": _read_name,
    "verdict": _read_name,
}
"""How a field is read: a function of its value, its name, the form, and the repairs so far."""
