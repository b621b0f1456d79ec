"""Reading what models answer: strictly where possible, and with every repair on record.

A reply is JSON; or JSON within prose or code fences; or prose. Nothing is guessed: a score out of
range, an unknown verdict or two codes that contradict each other make a reply unreadable, and the
protocol asks once more.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args

from raylab.annotation.outcome import Issue, Verdict
from raylab.codebook import Label
from raylab.errors import OptCodeError
from raylab.opt.code import OptCode, parse
from raylab.opt.prompts import WORDS

Json = dict[str, Any]
Choice = Literal["first", "second", "synthesis"]
Candidates = Mapping[Choice, Label]

LONGEST_REPLY = 200_000
"""Characters of a reply that is read; a longer one is a runaway."""
OBJECTS_TRIED = 200
"""Places in a reply where a JSON object is looked for."""
QUOTED = 60
"""Characters of a value that a problem quotes."""
ASIDE = re.compile(r"<(?P<name>think|thinking|reasoning)>|<(?P<fence>\w+ id=[0-9a-f]{8})>")
"""Opens what is no part of an answer: thoughts before it, or a copy of fenced material."""
LONE_OR_NUL = re.compile("[\ud800-\udfff\0]")
CUT_OFF = "it was cut off at max_tokens"
MADE_OF = {
    "mechanism": Issue.MECHANISM,
    "mechanisms": Issue.MECHANISM,
    "root": Issue.MECHANISM,
    "roots": Issue.MECHANISM,
    "execution": Issue.EXECUTION,
    "parallelism": Issue.EXECUTION,
    "pipeline": Issue.EXECUTION,
    "pipelines": Issue.EXECUTION,
    "parallelism/pipelines": Issue.EXECUTION,
    "composition": Issue.COMPOSITION,
    "attribute": Issue.ATTRIBUTES,
    "attributes": Issue.ATTRIBUTES,
    "attribute plausibility": Issue.ATTRIBUTES,
    "format": Issue.FORMAT,
}
"""Names of issues that models use, in lower case."""
VERDICT = r"(WEAK[ _-]?PASS|PASS|FAIL)\b"
ONE_OF_SEVERAL = r"(?!\W{0,5}(?:or\W{1,5})?(?:WEAK|PASS|FAIL))"
LABELLED_VERDICT = re.compile(r"\bverdict\b\W{0,12}" + VERDICT + ONE_OF_SEVERAL, re.IGNORECASE)
BARE_VERDICT = re.compile(r"\b" + VERDICT)
LABELLED_SCORE = re.compile(r"\bscore\b[^\w.\-]{0,12}(?:is |of )?(-?\d[\d.]*)", re.IGNORECASE)
LISTED_ISSUES = re.compile(
    r"\bissues?\b[\"'*\s]{0,8}:[*\s]{0,8}\[?([^\].;\n]{0,200})", re.IGNORECASE
)
SCORE = re.compile(r"\s*([0-9]{1,3})(?:\.0*)?\s*(?:/\s*100|%)?\s*")
SCORE_OF_100 = re.compile(r"(-?\d[\d.]*)\s*/\s*100\b")


class UnreadableError(Exception):
    """A reply that cannot be read; the message completes "it cannot be used: ..."."""


@dataclass(frozen=True)
class CodeReply:
    """An annotator's answer.

    Attributes:
        code: the OPT-Code.
        rationale: why.
        repairs: what was mended to read it; empty if it was as asked for.
    """

    code: Label
    rationale: str
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportReply:
    """An evaluator's answer: verdict, score in 0..100, criteria not met, reasons, repairs."""

    verdict: Verdict
    score: int
    issues: tuple[Issue, ...]
    summary: str
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceReply:
    """An adjudicator's answer: which of the two codes shown, or a code of its own.

    Attributes:
        choice: first or second, as shown, or synthesis.
        code: the final code.
        rationale: why; never empty.
        repairs: what was mended to read it.
    """

    choice: Choice
    code: Label
    rationale: str
    repairs: tuple[str, ...] = ()


R = TypeVar("R", CodeReply, ReportReply, ChoiceReply)


def read_code(text: str, finish_reason: str = "stop") -> CodeReply:
    """The code and rationale of a classifier's reply.

    Raises:
        UnreadableError: No code can be read, or the reply ends in the middle.
    """
    return _read(text, finish_reason, ("rationale", "opt"), _code_of, _code_in_prose)


def read_word(text: str, finish_reason: str = "stop") -> CodeReply:
    """The same of a reply in words; a code instead of a word is taken too.

    Raises:
        UnreadableError: Neither one word nor a code can be read, or the reply ends in the middle.
    """
    return _read(text, finish_reason, ("reason", "word"), _word_of, _word_in_prose)


def read_report(text: str, finish_reason: str = "stop") -> ReportReply:
    """The report of an evaluator's reply.

    The criterion `format` is left out, for it is computed and not asked for.

    Raises:
        UnreadableError: Verdict or score is missing, unknown, out of range or ambiguous.
    """
    keys = ("summary", "issues", "score", "verdict")
    return _read(text, finish_reason, keys, _report_of, _report_in_prose)


def read_grade(text: str, finish_reason: str = "stop") -> ReportReply:
    """The same of a reply without issues: only the mechanism is judged, so FAIL is that issue.

    Raises:
        UnreadableError: As `read_report`.
    """
    keys = ("summary", "score", "verdict")
    report = _read(text, finish_reason, keys, _grade_of, _report_in_prose)
    failed = report.verdict is Verdict.FAIL
    return replace(report, issues=(Issue.MECHANISM,) if failed else ())


def read_choice(text: str, shown: Candidates, finish_reason: str = "stop") -> ChoiceReply:
    """The choice of an adjudicator's reply between two codes, or a third.

    The final code decides: a choice that names a candidate and gives a third code is a synthesis.
    A chosen candidate keeps its own line.

    Args:
        text: The reply.
        shown: The codes of `first` and `second`, as they were shown.
        finish_reason: Why the server stopped.

    Raises:
        UnreadableError: No choice or no reason can be read, or choice and code contradict.
    """
    return _read(
        text,
        finish_reason,
        ("rationale", "choice", "opt"),
        lambda found: _choice_of(found, shown),
        lambda prose: _choice_by_code(_code_in_prose(prose), shown),
    )


def read_choice_word(text: str, shown: Candidates, finish_reason: str = "stop") -> ChoiceReply:
    """The same of a reply in words: the choice is the candidate whose code the word stands for.

    Raises:
        UnreadableError: As `read_word`, or there is no reason.
    """
    return _choice_by_code(read_word(text, finish_reason), shown)


def clean(text: str) -> str:
    """The text with U+FFFD for NUL and lone surrogates, which no database takes."""
    return LONE_OR_NUL.sub("\ufffd", text)


def _read(
    text: str,
    finish_reason: str,
    keys: tuple[str, ...],
    of_object: Callable[[Json], R],
    in_prose: Callable[[str], R],
) -> R:
    """Reads the JSON object of a reply or, if it holds none, its prose."""
    text = clean(text)
    if len(text) > LONGEST_REPLY:
        raise UnreadableError(f"it has {len(text):,} characters")
    if not text.strip():
        cut = finish_reason == "length"
        raise UnreadableError(f"it is empty{', ' + CUT_OFF if cut else ''}")
    repairs: list[str] = []
    answer, found = _find_object(text, keys, repairs)
    if found is None and finish_reason == "length":
        raise UnreadableError(CUT_OFF)
    if found is None and finish_reason == "content_filter":
        raise UnreadableError("the server withheld it (content_filter)")
    if found is None:
        repairs.append("no JSON object: read as prose")
        reply = in_prose(answer)
    else:
        reply = of_object(found)
        if extra := sorted(found.keys() - set(keys)):
            repairs.append(f"unknown keys ignored: {_quoted(', '.join(extra))}")
        order = [key for key in found if key in keys]
        if order != [key for key in keys if key in found]:
            repairs.append(f"keys in another order: {', '.join(order)}")
    return replace(reply, repairs=(*repairs, *reply.repairs))


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


# JSON


def _find_object(text: str, keys: Iterable[str], repairs: list[str]) -> tuple[str, Json | None]:
    """What of a reply is its answer, and the JSON object that this is or holds.

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
        repairs.append(f"keys given twice, the last taken: {_quoted(', '.join(sorted(twice)))}")
    return answer, whole


def _decoded(decoder: json.JSONDecoder, text: str) -> Json | None:
    """The object that a text is; None if it is anything else."""
    try:
        whole = decoder.decode(text)
    except (ValueError, RecursionError):
        return None
    return cast(Json, whole) if isinstance(whole, dict) else None


def _objects(decoder: json.JSONDecoder, text: str) -> Iterator[Json]:
    start = text.find("{")
    for _ in range(OBJECTS_TRIED):
        if start < 0:
            return
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield cast(Json, found)
        start = text.find("{", end)


def _without_doubles(pairs: list[tuple[str, Any]], twice: set[str]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice.update(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )
    return found


def _code_of(found: Json) -> CodeReply:
    repairs: list[str] = []
    rationale = _text_of(found, "rationale", repairs)
    return CodeReply(_code_at(found, "opt", repairs), rationale, tuple(repairs))


def _code_at(found: Json, key: str, repairs: list[str]) -> OptCode:
    """The code at a key or, if the key is missing, anywhere else but in the rationale."""
    line = found.get(key)
    if isinstance(line, str):
        return _parse(line, repairs)
    rest = {name: value for name, value in found.items() if name != "rationale"}
    code = _parse(_dumped(rest), repairs)
    repairs.append(f"no text at the key {key}: code read from the other keys")
    return code


def _word_of(found: Json) -> CodeReply:
    repairs: list[str] = []
    reason = _text_of(found, "reason", repairs)
    word = found.get("word")
    if not isinstance(word, str):
        _refuse("word", word, f"one of {', '.join(WORDS)}")
    if word in WORDS:
        return CodeReply(_of_word(word), reason, tuple(repairs))
    reply = _word_in_prose(word)
    repairs.append(f"word {_quoted(word)} read as {reply.code.composition}")
    return CodeReply(reply.code, reason, (*repairs, *reply.repairs))


def _report_of(found: Json) -> ReportReply:
    report, repairs = _grade_of(found), list[str]()
    issues = _issues_of(found.get("issues"), repairs)
    return replace(report, issues=issues, repairs=(*report.repairs, *repairs))


def _grade_of(found: Json) -> ReportReply:
    repairs: list[str] = []
    verdict = _verdict_of(found.get("verdict"), repairs)
    score = _score_of(found.get("score"), repairs)
    return ReportReply(verdict, score, (), _text_of(found, "summary", repairs), tuple(repairs))


def _choice_of(found: Json, shown: Candidates) -> ChoiceReply:
    repairs: list[str] = []
    rationale = _text_of(found, "rationale", repairs)
    named = _choice_named(found.get("choice"), repairs)
    chosen = None if named is None else shown.get(named)
    if named and chosen and found.get("opt") is None:
        repairs.append("no final line: that of the chosen candidate taken")
        return _justified(ChoiceReply(named, chosen, rationale, tuple(repairs)))
    reply = CodeReply(_code_at(found, "opt", repairs), rationale, tuple(repairs))
    if named and chosen and chosen.composition == reply.code.composition:
        return _justified(ChoiceReply(named, chosen, rationale, tuple(repairs)))
    choice = _choice_by_code(reply, shown)
    if chosen and choice.choice in shown:
        raise UnreadableError(f"choice is {named} and opt is the line of the other candidate")
    if named in (None, choice.choice):
        return choice
    note = f"choice {named}, but its line makes it {choice.choice}"
    return replace(choice, repairs=(*choice.repairs, note))


def _choice_named(value: object, repairs: list[str]) -> Choice | None:
    """The choice that a reply names; None if it names none, so that its code decides."""
    if value is None:
        repairs.append("no choice named: its code decides")
        return None
    name = value.strip().lower() if isinstance(value, str) else value
    for choice in get_args(Choice):
        if name == choice:
            if value != name:
                repairs.append(f"choice {_quoted(value)} read as {choice}")
            return choice
    _refuse("choice", value, "first, second or synthesis")


def _choice_by_code(reply: CodeReply, shown: Candidates) -> ChoiceReply:
    """The candidate of the same composition, with its own line, or a synthesis."""
    for choice, candidate in shown.items():
        if reply.code.composition == candidate.composition:
            return _justified(ChoiceReply(choice, candidate, reply.rationale, reply.repairs))
    return _justified(ChoiceReply("synthesis", reply.code, reply.rationale, reply.repairs))


def _justified(reply: ChoiceReply) -> ChoiceReply:
    if not reply.rationale:
        raise UnreadableError("it gives no reason for the choice")
    return reply


def _text_of(found: Json, key: str, repairs: list[str]) -> str:
    """The text at a key; a missing or other one is empty, for no reasons are made up."""
    value = found.get(key)
    if isinstance(value, str):
        return clean(value).strip()
    repairs.append(f"no text at the key {key}")
    return ""


def _verdict_of(value: object, repairs: list[str]) -> Verdict:
    name = re.sub(r"[\s-]+", "_", value.strip().upper()) if isinstance(value, str) else None
    for verdict in Verdict:
        if name == verdict:
            if value != name:
                repairs.append(f"verdict {_quoted(value)} read as {name}")
            return verdict
    _refuse("verdict", value, f"one of {', '.join(Verdict)}")


def _score_of(value: object, repairs: list[str]) -> int:
    """An integer of 0 to 100; nothing is clamped, for 850 may have meant 8.5 or 85."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif found := SCORE.fullmatch(value if isinstance(value, str) else _dumped(value)):
        number = int(found[1])
        repairs.append(f"score {_quoted(value)} read as {number}")
    else:
        number = -1
    if not 0 <= number <= 100:
        _refuse("score", value, "an integer from 0 to 100")
    return number


def _issues_of(value: object, repairs: list[str]) -> tuple[Issue, ...]:
    """The criteria named, in the order of `Issue`; `format` is not the model's to judge."""
    if isinstance(value, str):
        repairs.append("issues given as text")
        value = re.split(r"[,;|\n]", value)
    if not isinstance(value, list):
        repairs.append("no list at the key issues")
        return ()
    found: set[Issue] = set()
    for item in cast(list[object], value):
        name = item.strip(" \t\"'*").lower() if isinstance(item, str) else ""
        if name not in MADE_OF:
            repairs.append(f"issue {_quoted(item)} is no criterion: ignored")
            continue
        found.add(MADE_OF[name])
        if name not in [issue.value for issue in Issue]:
            repairs.append(f"issue {_quoted(item)} read as {MADE_OF[name]}")
    if Issue.FORMAT in found:
        repairs.append("issue format ignored: it is computed")
    return tuple(issue for issue in Issue if issue in found and issue is not Issue.FORMAT)


# Prose


def _code_in_prose(text: str) -> CodeReply:
    repairs: list[str] = []
    return CodeReply(_parse(text, repairs), text.strip(), tuple(repairs))


def _word_in_prose(text: str) -> CodeReply:
    """The only word of the list that a text holds, or the code in it."""
    named = {word for word in WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)}
    if len(named) == 1 and "OPT" not in text:
        return CodeReply(_of_word(named.pop()), text.strip())
    try:
        return _code_in_prose(text)
    except UnreadableError:
        count = "none" if not named else f"{len(named)}"
        raise UnreadableError(f"it holds {count} of the words {', '.join(WORDS)}") from None


def _report_in_prose(text: str) -> ReportReply:
    verdicts = LABELLED_VERDICT.findall(text) or BARE_VERDICT.findall(text)
    scores = LABELLED_SCORE.findall(text) or SCORE_OF_100.findall(text)
    repairs: list[str] = []
    verdict = _only("verdict", [re.sub(r"[ -]", "_", verdict.upper()) for verdict in verdicts])
    score = _score_of(_only("score", [score.rstrip(".") for score in scores]), repairs)
    listed = LISTED_ISSUES.search(text)
    issues = _issues_of(listed[1], repairs) if listed else ()
    return ReportReply(Verdict(verdict), score, issues, text.strip(), tuple(repairs))


def _only(what: str, found: list[str]) -> str:
    distinct = dict.fromkeys(found)
    if len(distinct) != 1:
        stated = f"{len(distinct)} of them: {_quoted(', '.join(distinct))}" if distinct else "none"
        raise UnreadableError(f"it should state one {what} and states {stated}")
    return found[0]


# Values


def _parse(text: str, repairs: list[str]) -> OptCode:
    try:
        code = parse(text)
    except OptCodeError as error:
        raise UnreadableError(f"no OPT-Code in it: {str(error).splitlines()[0]}") from None
    repairs += code.repairs
    if code.missing:
        repairs.append(f"fields not given: {', '.join(code.missing)}")
    return code


def _of_word(word: str) -> OptCode:
    return parse(f"OPT={WORDS[word].value}")


def _refuse(key: str, value: object, expected: str) -> NoReturn:
    given = "missing" if value is None else _quoted(value)
    raise UnreadableError(f"{key} is {given}, it should be {expected}")


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else _dumped(value)
    return repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}...")


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "a number or nesting too large to show"
