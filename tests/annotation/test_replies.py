import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.annotation.replies import Settled, UnreadableError, read_reply, settle
from raylab.codebook import Choice, Label, LabelReply, ReportReply, Verdict, clean
from raylab.opt.answers import CODE_ANSWERS, CRITERIA, WORD_ANSWERS
from raylab.opt.code import parse
from tests.annotation.chats import FIELDS, coded, graded, settled

FIRST, SECOND = parse(f"OPT=Ctl{FIELDS}"), parse(f"OPT=Lrn{FIELDS}")
SHOWN: dict[Choice, Label] = {"first": FIRST, "second": SECOND}
EVO = f"OPT=Evo{FIELDS}"


def read_code(text: str, finish_reason: str = "stop") -> tuple[LabelReply, list[str]]:
    return read_reply(CODE_ANSWERS.label, text, finish_reason)


def read_word(text: str, finish_reason: str = "stop") -> tuple[LabelReply, list[str]]:
    return read_reply(WORD_ANSWERS.label, text, finish_reason)


def read_report(text: str, finish_reason: str = "stop") -> tuple[ReportReply, list[str]]:
    return read_reply(CODE_ANSWERS.report, text, finish_reason, CRITERIA)


def read_choice(
    text: str, shown: dict[Choice, Label] = SHOWN, finish_reason: str = "stop", form: Any = None
) -> tuple[Settled, list[str]]:
    form = form or CODE_ANSWERS
    return settle(*read_reply(form.choice, text, finish_reason), shown)


def test_code_as_asked_for_needs_no_repair() -> None:
    reply, repairs = read_code(coded("Evo/Lrn", "a population whose members learn"))
    assert str(reply.label) == f"OPT=Evo/Lrn{FIELDS}"
    assert (reply.rationale, repairs) == ("a population whose members learn", [])


@pytest.mark.parametrize(
    ("text", "repair"),
    [
        (f"Here it is:\n```json\n{coded('Evo')}\n```\n", "text around the JSON object ignored"),
        (f"\ufeff {coded('Evo')}", "text around the JSON object ignored"),
        (coded("Evo") + coded("Evo"), "text around the JSON object ignored"),
        (f"[{coded('Evo')}]", "text around the JSON object ignored"),
        (json.dumps({"opt": EVO, "rationale": "because"}), "keys in another order"),
        (coded("Evo", confidence=0.9), "unknown keys ignored: 'confidence'"),
        (json.dumps({"opt": EVO}), "keys not given: rationale"),
        (json.dumps({"rationale": ["x"], "opt": EVO}), "rationale is no text"),
        (f'{{"rationale": "x", "opt": "OPT=Lrn", "opt": "{EVO}"}}', "keys given twice"),
        (f"The population breeds.\n{EVO}", "no JSON object: read as prose"),
        (f"<think>{coded('Lrn')}</think>{coded('Evo')}", "thoughts or quoted material ignored"),
        (
            f"<description id=0a1b2c3d>{coded('Lrn')}</description id=0a1b2c3d>{coded('Evo')}",
            "thoughts or quoted material ignored",
        ),
        (
            '{"rationale": "a\nb", "opt": "OPT=Evo"}',
            "fields not given: Rep, Obj, Data, Time, Human",
        ),
        (json.dumps({"rationale": "x", "opt": f"`opt: evolution{FIELDS}`"}), "other names"),
    ],
)
def test_code_with_a_repair(text: str, repair: str) -> None:
    reply, repairs = read_code(text)
    assert str(reply.label).startswith("OPT=Evo")
    assert any(repair in one for one in repairs), repairs


def test_tags_within_a_whole_reply_are_text() -> None:
    text = coded("Evo", "the input has a <think> tag and <description id=0a1b2c3d> in it")
    assert read_code(text)[1] == []


def test_rationale_of_prose_is_the_prose() -> None:
    text = f"It breeds.\n{EVO}"
    assert read_code(text)[0].rationale == text


@pytest.mark.parametrize(
    ("text", "finish_reason", "problem"),
    [
        ("", "stop", "it is empty"),
        (" \n", "length", "it is empty, it was cut off at max_tokens"),
        ("no idea", "stop", "no OPT-Code"),
        ('{"rationale": "OPT=Evo or OPT=Lrn, th', "length", "it was cut off at max_tokens"),
        ('{"rationale": "OPT=Evo or', "content_filter", "the server withheld it"),
        (json.dumps({"rationale": EVO, "opt": "none of them"}), "stop", "no OPT-Code"),
        (json.dumps({"rationale": EVO, "opt": ["Evo"]}), "stop", "opt is .*: should be text"),
        (json.dumps({"rationale": EVO}), "stop", "opt is missing"),
        (json.dumps({"rationale": EVO, "opt": None}), "stop", "opt is missing"),
        ("x" * 200_001, "stop", "it has 200,001 characters"),
        (coded("Lrn") + coded("Evo"), "stop", "it holds 2 JSON objects that differ"),
        (f"<think>{coded('Lrn')} or rath", "length", "it was cut off at max_tokens"),
    ],
)
def test_no_code(text: str, finish_reason: str, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        read_code(text, finish_reason)


@pytest.mark.parametrize(
    ("text", "roots", "strict"),
    [
        ('{"reason": "a population", "word": "evolution"}', "Evo", True),
        ('{"reason": "a population", "word": "Evolution."}', "Evo", False),
        ("swarm", "Swm", False),
        ("The answer is: RULES!", "Sym", False),
        (EVO, "Evo", False),
    ],
)
def test_word(text: str, roots: str, strict: bool) -> None:
    reply, repairs = read_word(text)
    assert reply.label.composition == roots
    assert (repairs == []) is strict


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"reason": "x", "word": "magic"}', "it holds none of the words learning"),
        ('{"reason": "x"}', "word is missing"),
        ('{"reason": "x", "word": 3}', "word is '3': should be text"),
        ("search or rules", "it holds 2 of the words"),
    ],
)
def test_no_word(text: str, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        read_word(text)


def test_report_as_asked_for_needs_no_repair() -> None:
    reply, repairs = read_report(graded("WEAK_PASS", 72, ["composition", "attributes"]))
    assert (reply.verdict, reply.score, reply.summary) == (Verdict.WEAK_PASS, 72, "so it seems")
    assert reply.issues == ("composition", "attributes") and repairs == []


@pytest.mark.parametrize(
    ("text", "verdict", "score", "issues"),
    [
        (graded("weak pass", 72), "WEAK_PASS", 72, []),
        (graded("Pass", 90.0), "PASS", 90, []),
        (graded("PASS", "90"), "PASS", 90, []),
        (graded("PASS", "90/100"), "PASS", 90, []),
        (graded("PASS", " 90 % "), "PASS", 90, []),
        (
            graded("FAIL", 20, "Parallelism/Pipelines, root"),
            "FAIL",
            20,
            ["mechanism", "parallelism/pipelines"],
        ),
        (graded("PASS", 90, ["format"]), "PASS", 90, []),
        (graded("PASS", 90, ["beauty", 7, None]), "PASS", 90, []),
        (json.dumps({"verdict": "PASS", "score": 90, "summary": "x"}), "PASS", 90, []),
    ],
)
def test_report_with_a_repair(text: str, verdict: str, score: int, issues: list[str]) -> None:
    reply, repairs = read_report(text)
    assert (reply.verdict, reply.score) == (verdict, score)
    assert list(reply.issues) == issues
    assert repairs


@pytest.mark.parametrize(
    "score", [-1, 101, 1e9, 85.5, 0.9, "high", "", None, True, [90], {"of": 90}, "9" * 9, "1O0"]
)
def test_score_out_of_range_is_not_guessed(score: object) -> None:
    with pytest.raises(UnreadableError, match="score is"):
        read_report(graded("PASS", score))


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_number_that_json_does_not_know(score: str) -> None:
    text = graded("PASS", 0).replace('"score": 0', f'"score": {score}')
    with pytest.raises(UnreadableError):
        read_report(text)


@pytest.mark.parametrize("verdict", ["OK", "PASS or FAIL", "", None, 1, ["PASS"]])
def test_unknown_verdict_is_not_guessed(verdict: object) -> None:
    with pytest.raises(UnreadableError, match="verdict is"):
        read_report(graded(verdict, 90))


@pytest.mark.parametrize(
    "text",
    [
        "**Verdict:** WEAK_PASS\n**Score:** 75/100. Good enough.",
        "PASS (92/100)",
        '{"summary": "an "unescaped" mechanism", "issues": [], "score": 90, "verdict": "PASS"}',
    ],
)
def test_verdict_is_not_guessed_out_of_prose(text: str) -> None:
    with pytest.raises(UnreadableError, match="it holds no JSON object"):
        read_report(text)


def test_short_report_lists_no_issues() -> None:
    text = json.dumps({"summary": "x", "score": 80, "verdict": "FAIL", "issues": ["attributes"]})
    reply, repairs = read_reply(WORD_ANSWERS.report, text, criteria=CRITERIA)
    assert (reply.issues, repairs) == ((), ["unknown keys ignored: 'issues'"])


OTHER = "; Rep=state; Obj=setpoint; Data=observed; Time=online; Human=low"


def line(choice: str | None, opt: str | None) -> str:
    return json.dumps({"rationale": "r", "choice": choice, "opt": opt})


@pytest.mark.parametrize(
    ("text", "choice", "final", "strict"),
    [
        (settled("first", "Ctl"), "first", str(FIRST), True),
        (settled("second", "Lrn"), "second", str(SECOND), True),
        (settled("synthesis", "Lrn+Ctl"), "synthesis", f"OPT=Lrn+Ctl{FIELDS}", True),
        # The final code decides.
        (settled("first", "Lrn+Ctl"), "synthesis", f"OPT=Lrn+Ctl{FIELDS}", False),
        (settled("synthesis", "Lrn"), "second", str(SECOND), False),
        (settled(" Second", "Lrn"), "second", str(SECOND), False),
        # A synthesis keeps its own attributes, though its roots are those of a candidate.
        (line("synthesis", f"OPT=Ctl{OTHER}"), "synthesis", f"OPT=Ctl{OTHER}", True),
        (line("synthesis", "OPT=Ctl; Rep=param"), "synthesis", "OPT=Ctl; Rep=param", False),
        (line("first", f"OPT=Ctl{OTHER}"), "synthesis", f"OPT=Ctl{OTHER}", False),
        (line(None, f"OPT=Ctl{OTHER}"), "synthesis", f"OPT=Ctl{OTHER}", False),
        # A chosen candidate that is given in part keeps its own fields.
        (line("first", "OPT=Ctl"), "first", str(FIRST), False),
        (line("second", None), "second", str(SECOND), False),
        (line(None, "OPT=Ctl"), "first", str(FIRST), False),
        (f"Neither is right.\n{EVO}", "synthesis", EVO, False),
    ],
)
def test_choice(text: str, choice: str, final: str, strict: bool) -> None:
    reply, repairs = read_choice(text)
    assert (reply.choice, str(reply.label)) == (choice, final)
    assert (repairs == []) is strict


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (settled("first", "Lrn"), "choice is first, and its line is that of the other candidate"),
        (settled("first", "Ctl", rationale=" "), "it gives no reason for the choice"),
        (json.dumps({"choice": "first", "opt": str(FIRST)}), "it gives no reason"),
        (settled("third", "Ctl"), "choice is 'third': .*'first', 'second' or 'synthesis'"),
        (line("synthesis", None), "opt is missing"),
        (json.dumps({"rationale": "r", "choice": 1, "opt": EVO}), "choice is '1'"),
    ],
)
def test_no_choice(text: str, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        read_choice(text)


def test_choice_between_equal_codes_is_the_one_named() -> None:
    shown: dict[Choice, Label] = {"first": FIRST, "second": FIRST}
    assert read_choice(settled("second", "Ctl"), shown)[0].choice == "second"
    assert read_choice(settled("synthesis", "Ctl"), shown)[0].choice == "first"


def test_choice_in_words() -> None:
    learning, _ = read_choice('{"reason": "r", "word": "learning"}', form=WORD_ANSWERS)
    assert learning.choice == "second"
    swarm, repairs = read_choice('{"reason": "r", "word": "swarm"}', form=WORD_ANSWERS)
    assert (swarm.choice, str(swarm.label), repairs) == ("synthesis", "OPT=Swm", [])


def test_clean_leaves_only_what_a_database_takes() -> None:
    assert clean("a\0b\ud800c\U0001f600") == "a\ufffdb\ufffdc\U0001f600"
    reply, _ = read_code('{"rationale": "a\\ud800\\u0000", "opt": "OPT=Evo"}')
    assert reply.rationale == "a\ufffd\ufffd"


FORMS = [
    *(CODE_ANSWERS.label, CODE_ANSWERS.report, CODE_ANSWERS.choice),
    *(WORD_ANSWERS.label, WORD_ANSWERS.report, WORD_ANSWERS.choice),
]


@given(
    text=st.text() | st.text(alphabet='{}[]":,\\OPT=Evo+/;<think>verdictscore0189 \n'),
    finish_reason=st.sampled_from(["stop", "length", "content_filter", ""]),
    form=st.sampled_from(FORMS),
)
def test_any_text_is_read_or_refused(text: str, finish_reason: str, form: type[Any]) -> None:
    try:
        reply, _ = read_reply(form, text, finish_reason, CRITERIA)
    except UnreadableError as error:
        assert str(error)
    else:
        assert isinstance(reply, form)


def test_reply_nested_to_the_limit_of_the_stack_is_refused() -> None:
    for depth in range(800, 1000):
        nested = "[" * depth + "]" * depth
        with pytest.raises(UnreadableError):
            read_report(f'{{"summary": "x", "issues": [], "score": {nested}, "verdict": "PASS"}}')
