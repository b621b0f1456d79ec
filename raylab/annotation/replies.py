"""The reading of replies: strict where possible, with a record of every repair.

A reply is JSON, JSON within prose or code fences, or prose. Nothing is guessed: a score out of
range, an unknown verdict or two contradictory labels make a reply unreadable, and the protocol asks
once more.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn, TypeVar, cast, get_args

from raylab.annotation.outcome import Verdict
from raylab.codebook import AnswerForm, Criterion, Label
from raylab.errors import LabelError
from raylab.llm.json_replies import (
    JsonObject,
    UnreadableError,
    clean,
    dump,
    find_object,
    quoted,
)

Choice = Literal["first", "second", "synthesis"]
Candidates = Mapping[Choice, Label]

LONGEST_REPLY = 200_000
"""Longest reply that is read, in characters; a longer one is a runaway."""
CUT_OFF = "it was cut off at max_tokens"
VERDICT = r"(WEAK[ _-]?PASS|PASS|FAIL)\b"
ONE_OF_SEVERAL = r"(?!\W{0,5}(?:or\W{1,5})?(?:WEAK|PASS|FAIL))"
LABELLED_VERDICT = re.compile(r"\bverdict\b\W{0,12}" + VERDICT + ONE_OF_SEVERAL, re.IGNORECASE)
BARE_VERDICT = re.compile(r"\b" + VERDICT)
LABELLED_SCORE = re.compile(r"\bscore\b[^\w.\-]{0,12}(?:is |of )?(-?\d[\d.]*)", re.IGNORECASE)
LISTED_ISSUES = re.compile(
    r"\bissues?\b[\"'*\s]{0,8}:[*\s]{0,8}\[?([^\].;\n]{0,200})", re.IGNORECASE
)
SCORE = re.compile(r"([0-9]{1,3})(?:\.0*+)?\s*+(?:/\s*+100|%)?")
SCORE_OF_100 = re.compile(r"(-?(?<!\d)\d[\d.]{0,20})\s{0,8}/\s{0,8}100\b")


@dataclass(frozen=True)
class LabelReply:
    """An annotator's answer.

    Attributes:
        label: The label.
        rationale: The reasons for it.
        repairs: Repairs that were needed to read it; empty if none were.
    """

    label: Label
    rationale: str
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportReply:
    """An evaluator's answer: verdict, score from 0 to 100, unmet criteria, reasons, repairs."""

    verdict: Verdict
    score: int
    issues: tuple[str, ...]
    summary: str
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceReply:
    """An adjudicator's answer: one of the two labels shown, or a label of its own.

    Attributes:
        choice: first or second, as shown, or synthesis.
        label: The final label.
        rationale: The reasons for it; never empty.
        repairs: Repairs that were needed to read it.
    """

    choice: Choice
    label: Label
    rationale: str
    repairs: tuple[str, ...] = ()


R = TypeVar("R", LabelReply, ReportReply, ChoiceReply)


@dataclass(frozen=True)
class ReplyReader:
    """A reader of the replies to one style of prompts.

    Attributes:
        form: Form in which labels are given.
        criteria: The criteria of the codebook, in the order of reports.
    """

    form: AnswerForm
    criteria: Sequence[Criterion]

    def read_label(self, text: str, finish_reason: str = "stop") -> LabelReply:
        """Reads the label and rationale of an annotator's reply.

        Raises:
            UnreadableError: No label can be read, or the reply is cut off.
        """
        keys = (self.form.reason_key, self.form.label_key)
        return _read(text, finish_reason, keys, self._label_of, self._label_in_prose)

    def read_report(self, text: str, finish_reason: str = "stop") -> ReportReply:
        """Reads the report of an evaluator's reply.

        Computed criteria are left out. If the form has no list of criteria, FAIL implies one.

        Raises:
            UnreadableError: Verdict or score is missing, unknown, out of range or ambiguous.
        """
        criterion = self.form.failed_criterion
        if criterion is None:
            keys = ("summary", "issues", "score", "verdict")
            return _read(text, finish_reason, keys, self._report_of, self._report_in_prose)
        keys = ("summary", "score", "verdict")
        report = _read(text, finish_reason, keys, _grade_of, self._report_in_prose)
        return replace(report, issues=(criterion,) if report.verdict is Verdict.FAIL else ())

    def read_choice(self, text: str, shown: Candidates, finish_reason: str = "stop") -> ChoiceReply:
        """Reads the choice in an adjudicator's reply: one of two labels, or a third.

        The final label decides: a choice that names a candidate and gives a third label is a
        synthesis. A chosen candidate keeps its own line.

        Args:
            text: The reply.
            shown: The labels of `first` and `second`, as they were shown.
            finish_reason: The reason why the server stopped.

        Raises:
            UnreadableError: No choice or no reason can be read, or choice and label contradict.
        """
        if not self.form.names_choice:
            return _choice_by_label(self.read_label(text, finish_reason), shown)
        return _read(
            text,
            finish_reason,
            (self.form.reason_key, "choice", self.form.label_key),
            lambda found: self._choice_of(found, shown),
            lambda prose: _choice_by_label(self._label_in_prose(prose), shown),
        )

    def _label_of(self, found: JsonObject) -> LabelReply:
        repairs: list[str] = []
        rationale = _text_of(found, self.form.reason_key, repairs)
        return LabelReply(self._label_at_key(found, repairs), rationale, tuple(repairs))

    def _label_at_key(self, found: JsonObject, repairs: list[str]) -> Label:
        """Reads the label at its key or, if the form allows it, anywhere except in the reasons."""
        key = self.form.label_key
        text = found.get(key)
        if isinstance(text, str):
            return _read_label(self.form.read, text, repairs)
        if self.form.expected is not None:
            _refuse(key, text, self.form.expected)
        rest = {name: value for name, value in found.items() if name != self.form.reason_key}
        label = _read_label(self.form.read, dump(rest), repairs)
        repairs.append(f"no text at the key {key}: code read from the other keys")
        return label

    def _label_in_prose(self, text: str) -> LabelReply:
        repairs: list[str] = []
        label = _read_label(self.form.read_prose, text, repairs)
        return LabelReply(label, text.strip(), tuple(repairs))

    def _choice_of(self, found: JsonObject, shown: Candidates) -> ChoiceReply:
        repairs: list[str] = []
        rationale = _text_of(found, self.form.reason_key, repairs)
        named = _choice_named(found.get("choice"), repairs)
        chosen = None if named is None else shown.get(named)
        if named and chosen and found.get(self.form.label_key) is None:
            repairs.append("no final line: that of the chosen candidate taken")
            return _justified(ChoiceReply(named, chosen, rationale, tuple(repairs)))
        reply = LabelReply(self._label_at_key(found, repairs), rationale, tuple(repairs))
        if named and chosen and chosen.composition == reply.label.composition:
            return _justified(ChoiceReply(named, chosen, rationale, tuple(repairs)))
        choice = _choice_by_label(reply, shown)
        if chosen and choice.choice in shown:
            raise UnreadableError(
                f"choice is {named} and {self.form.label_key} is the line of the other candidate"
            )
        if named in (None, choice.choice):
            return choice
        note = f"choice {named}, but its line makes it {choice.choice}"
        return replace(choice, repairs=(*choice.repairs, note))

    def _report_of(self, found: JsonObject) -> ReportReply:
        report, repairs = _grade_of(found), list[str]()
        issues = self._issues_of(found.get("issues"), repairs)
        return replace(report, issues=issues, repairs=(*report.repairs, *repairs))

    def _report_in_prose(self, text: str) -> ReportReply:
        verdicts = LABELLED_VERDICT.findall(text) or BARE_VERDICT.findall(text)
        scores = LABELLED_SCORE.findall(text) or SCORE_OF_100.findall(text)
        repairs: list[str] = []
        verdict = _only("verdict", [re.sub(r"[ -]", "_", verdict.upper()) for verdict in verdicts])
        score = _score_of(_only("score", [score.rstrip(".") for score in scores]), repairs)
        listed = LISTED_ISSUES.search(text)
        issues = self._issues_of(listed[1], repairs) if listed else ()
        return ReportReply(Verdict(verdict), score, issues, text.strip(), tuple(repairs))

    def _issues_of(self, value: object, repairs: list[str]) -> tuple[str, ...]:
        """Returns the criteria named, in the order of reports, without the computed ones."""
        if isinstance(value, str):
            repairs.append("issues given as text")
            value = re.split(r"[,;|\n]", value)
        if not isinstance(value, list):
            repairs.append("no list at the key issues")
            return ()
        meant = {name: one for one in self.criteria for name in (one.name, *one.synonyms)}
        found: set[Criterion] = set()
        for item in cast(list[object], value):
            name = item.strip(" \t\"'*").lower() if isinstance(item, str) else ""
            if name not in meant:
                repairs.append(f"issue {quoted(item)} is no criterion: ignored")
                continue
            found.add(meant[name])
            if name != meant[name].name:
                repairs.append(f"issue {quoted(item)} read as {meant[name].name}")
        for criterion in self.criteria:
            if criterion in found and not criterion.asked:
                repairs.append(f"issue {criterion.name} ignored: it is computed")
        return tuple(one.name for one in self.criteria if one in found and one.asked)


def _read(
    text: str,
    finish_reason: str,
    keys: tuple[str, ...],
    of_object: Callable[[JsonObject], R],
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
    answer, found = find_object(text, keys, repairs)
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
            repairs.append(f"unknown keys ignored: {quoted(', '.join(extra))}")
        order = [key for key in found if key in keys]
        if order != [key for key in keys if key in found]:
            repairs.append(f"keys in another order: {', '.join(order)}")
    return replace(reply, repairs=(*repairs, *reply.repairs))


def _grade_of(found: JsonObject) -> ReportReply:
    repairs: list[str] = []
    verdict = _verdict_of(found.get("verdict"), repairs)
    score = _score_of(found.get("score"), repairs)
    return ReportReply(verdict, score, (), _text_of(found, "summary", repairs), tuple(repairs))


def _choice_named(value: object, repairs: list[str]) -> Choice | None:
    """Returns the choice that a reply names; None if it names none and its code decides."""
    if value is None:
        repairs.append("no choice named: its code decides")
        return None
    name = value.strip().lower() if isinstance(value, str) else value
    for choice in get_args(Choice):
        if name == choice:
            if value != name:
                repairs.append(f"choice {quoted(value)} read as {choice}")
            return choice
    _refuse("choice", value, "first, second or synthesis")


def _choice_by_label(reply: LabelReply, shown: Candidates) -> ChoiceReply:
    """Returns the candidate of the same composition, with its own line, or else a synthesis."""
    for choice, candidate in shown.items():
        if reply.label.composition == candidate.composition:
            return _justified(ChoiceReply(choice, candidate, reply.rationale, reply.repairs))
    return _justified(ChoiceReply("synthesis", reply.label, reply.rationale, reply.repairs))


def _justified(reply: ChoiceReply) -> ChoiceReply:
    if not reply.rationale:
        raise UnreadableError("it gives no reason for the choice")
    return reply


def _text_of(found: JsonObject, key: str, repairs: list[str]) -> str:
    """Returns the text at a key; empty if it is missing or no text."""
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
                repairs.append(f"verdict {quoted(value)} read as {name}")
            return verdict
    _refuse("verdict", value, f"one of {', '.join(Verdict)}")


def _score_of(value: object, repairs: list[str]) -> int:
    """Returns an integer from 0 to 100; not clamped, because 850 may mean 8.5 or 85."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif found := SCORE.fullmatch(value.strip() if isinstance(value, str) else dump(value)):
        number = int(found[1])
        repairs.append(f"score {quoted(value)} read as {number}")
    else:
        number = -1
    if not 0 <= number <= 100:
        _refuse("score", value, "an integer from 0 to 100")
    return number


def _only(what: str, found: list[str]) -> str:
    distinct = dict.fromkeys(found)
    if len(distinct) != 1:
        stated = f"{len(distinct)} of them: {quoted(', '.join(distinct))}" if distinct else "none"
        raise UnreadableError(f"it should state one {what} and states {stated}")
    return found[0]


def _read_label(read: Callable[[str, list[str]], Label], text: str, repairs: list[str]) -> Label:
    try:
        return read(text, repairs)
    except LabelError as error:
        raise UnreadableError(str(error)) from None


def _refuse(key: str, value: object, expected: str) -> NoReturn:
    given = "missing" if value is None else quoted(value)
    raise UnreadableError(f"{key} is {given}, it should be {expected}")
