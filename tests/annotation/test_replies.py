import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.annotation.outcome import Verdict
from raylab.annotation.replies import Candidates, ReplyReader
from raylab.llm.json_replies import UnreadableError, clean
from raylab.opt.answers import CODE_ANSWERS, WORD_ANSWERS
from raylab.opt.code import OptCode, parse
from raylab.opt.criteria import CRITERIA
from tests.annotation.chats import FIELDS, coded, graded, settled

CODES = ReplyReader(CODE_ANSWERS, CRITERIA)
ANSWERS_IN_WORDS = ReplyReader(WORD_ANSWERS, CRITERIA)
read_code, read_report, read_choice = CODES.read_label, CODES.read_report, CODES.read_choice
read_word, read_grade = ANSWERS_IN_WORDS.read_label, ANSWERS_IN_WORDS.read_report
read_choice_word = ANSWERS_IN_WORDS.read_choice

FIRST, SECOND = parse(f"OPT=Ctl{FIELDS}"), parse(f"OPT=Lrn{FIELDS}")
SHOWN: Candidates = {"first": FIRST, "second": SECOND}
EVO = f"OPT=Evo{FIELDS}"


def test_code_as_asked_for_needs_no_repair() -> None:
    reply = read_code(coded("Evo/Lrn", "a population whose members learn"))
    assert str(reply.label) == f"OPT=Evo/Lrn{FIELDS}"
    assert (reply.rationale, reply.repairs) == ("a population whose members learn", ())


@pytest.mark.parametrize(
    ("text", "repair"),
    [
        (f"Here it is:\n```json\n{coded('Evo')}\n```\n", "text around the JSON object ignored"),
        (f"\ufeff {coded('Evo')}", "text around the JSON object ignored"),
        (coded("Evo") + coded("Evo"), "text around the JSON object ignored"),
        (f"[{coded('Evo')}]", "text around the JSON object ignored"),
        (json.dumps({"opt": EVO, "rationale": "because"}), "keys in another order"),
        (coded("Evo", confidence=0.9), "unknown keys ignored: 'confidence'"),
        (json.dumps({"opt": EVO}), "no text at the key rationale"),
        (json.dumps({"rationale": ["x"], "opt": EVO}), "no text at the key rationale"),
        (json.dumps({"rationale": "because", "code": EVO}), "no text at the key opt"),
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
        (json.dumps({"rationale": "x", "opt": f"`opt: evolution{FIELDS}`"}), ""),
    ],
)
def test_code_with_a_repair(text: str, repair: str) -> None:
    reply = read_code(text)
    assert str(reply.label).startswith("OPT=Evo")
    assert reply.repairs and any(repair in one for one in reply.repairs), reply.repairs


def test_tags_within_a_whole_reply_are_text() -> None:
    text = coded("Evo", "the input has a <think> tag and <description id=0a1b2c3d> in it")
    assert read_code(text).repairs == ()


def test_rationale_of_prose_is_the_prose() -> None:
    text = f"It breeds.\n{EVO}"
    assert read_code(text).rationale == text


@pytest.mark.parametrize(
    ("text", "finish_reason", "problem"),
    [
        ("", "stop", "it is empty"),
        (" \n", "length", "it is empty, it was cut off at max_tokens"),
        ("no idea", "stop", "no OPT-Code in it"),
        ('{"rationale": "OPT=Evo or OPT=Lrn, th', "length", "it was cut off at max_tokens"),
        ('{"rationale": "OPT=Evo or', "content_filter", "the server withheld it"),
        (json.dumps({"rationale": EVO, "opt": "none of them"}), "stop", "no OPT-Code in it"),
        (json.dumps({"rationale": EVO}), "stop", "no OPT-Code in it"),
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
    reply = read_word(text)
    assert reply.label.composition == roots
    assert (reply.repairs == ()) is strict


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"reason": "x", "word": "magic"}', "it holds none of the words learning"),
        ('{"reason": "x"}', "word is missing, it should be one of learning"),
        ('{"reason": "x", "word": 3}', "word is '3', it should be one of learning"),
        ("search or rules", "it holds 2 of the words"),
    ],
)
def test_no_word(text: str, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        read_word(text)


def test_report_as_asked_for_needs_no_repair() -> None:
    reply = read_report(graded("WEAK_PASS", 72, ["composition", "attributes"]))
    assert (reply.verdict, reply.score, reply.summary) == (Verdict.WEAK_PASS, 72, "so it seems")
    assert reply.issues == ("composition", "attributes") and reply.repairs == ()


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
        ("**Verdict:** WEAK_PASS\n**Score:** 75/100. Good enough.", "WEAK_PASS", 75, []),
        ("I give it a score of 40, so it is a FAIL. Issues: mechanism.", "FAIL", 40, ["mechanism"]),
        ("PASS (92/100)", "PASS", 92, []),
        (
            '{"summary": "an "unescaped" mechanism", "issues": [], "score": 90, "verdict": "PASS"}',
            "PASS",
            90,
            [],
        ),
        (
            '{"summary": "a "b"", "issues": ["root", "execution"], "score": 9, "verdict": "FAIL"}',
            "FAIL",
            9,
            ["mechanism", "parallelism/pipelines"],
        ),
        ("verdict: pass; score: 85", "PASS", 85, []),
    ],
)
def test_report_with_a_repair(text: str, verdict: str, score: int, issues: list[str]) -> None:
    reply = read_report(text)
    assert (reply.verdict, reply.score) == (verdict, score)
    assert list(reply.issues) == issues
    assert reply.repairs


@pytest.mark.parametrize(
    "score", [-1, 101, 1e9, 85.5, 0.9, "high", "", None, True, [90], {"of": 90}, "9" * 9, "1O0"]
)
def test_score_out_of_range_is_not_guessed(score: object) -> None:
    with pytest.raises(UnreadableError, match="an integer from 0 to 100"):
        read_report(graded("PASS", score))


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_number_that_json_does_not_know(score: str) -> None:
    text = graded("PASS", 0).replace('"score": 0', f'"score": {score}')
    with pytest.raises(UnreadableError):
        read_report(text)


@pytest.mark.parametrize("verdict", ["OK", "PASS or FAIL", "", None, 1, ["PASS"]])
def test_unknown_verdict_is_not_guessed(verdict: object) -> None:
    with pytest.raises(UnreadableError, match="one of PASS, WEAK_PASS, FAIL"):
        read_report(graded(verdict, 90))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("It is fine.", "it should state one verdict and states none"),
        ("PASS", "it should state one score and states none"),
        ("verdict: PASS | WEAK_PASS | FAIL, score: 90", "states 3 of them"),
        ("verdict: PASS, score 90. On second thought, verdict: FAIL", "states 2 of them"),
        ("verdict: PASS, score: 90, or rather score: 60", "states 2 of them"),
        ("verdict: PASS, score: 900", "an integer from 0 to 100"),
        ("verdict: PASS, score: -90", "an integer from 0 to 100"),
    ],
)
def test_ambiguous_prose_is_not_guessed(text: str, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        read_report(text)


@pytest.mark.parametrize(
    ("verdict", "issues"), [("PASS", ()), ("WEAK_PASS", ()), ("FAIL", ("mechanism",))]
)
def test_grade_judges_the_mechanism_alone(verdict: str, issues: tuple[str, ...]) -> None:
    text = json.dumps({"summary": "x", "score": 80, "verdict": verdict})
    reply = read_grade(text)
    assert (reply.issues, reply.repairs) == (issues, ())


@pytest.mark.parametrize(
    ("text", "choice", "line", "strict"),
    [
        (settled("first", "Ctl"), "first", str(FIRST), True),
        (settled("second", "Lrn"), "second", str(SECOND), True),
        (settled("synthesis", "Lrn+Ctl"), "synthesis", f"OPT=Lrn+Ctl{FIELDS}", True),
        # The final code decides.
        (settled("first", "Lrn+Ctl"), "synthesis", f"OPT=Lrn+Ctl{FIELDS}", False),
        (settled("synthesis", "Lrn"), "second", str(SECOND), False),
        (settled(" Second", "Lrn"), "second", str(SECOND), False),
        # A chosen candidate keeps its own fields.
        (
            json.dumps({"rationale": "r", "choice": "first", "opt": "OPT=Ctl"}),
            "first",
            str(FIRST),
            False,
        ),
        (json.dumps({"rationale": "r", "choice": "second"}), "second", str(SECOND), False),
        (json.dumps({"rationale": "r", "opt": "OPT=Ctl"}), "first", str(FIRST), False),
        (f"Neither is right.\n{EVO}", "synthesis", EVO, False),
    ],
)
def test_choice(text: str, choice: str, line: str, strict: bool) -> None:
    reply = read_choice(text, SHOWN)
    assert (reply.choice, str(reply.label)) == (choice, line)
    assert (reply.repairs == ()) is strict


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (settled("first", "Lrn"), "choice is first and opt is the line of the other candidate"),
        (settled("first", "Ctl", rationale=" "), "it gives no reason for the choice"),
        (json.dumps({"choice": "first", "opt": str(FIRST)}), "it gives no reason"),
        (settled("third", "Ctl"), "choice is 'third', it should be first, second or synthesis"),
        (json.dumps({"rationale": "r", "choice": "synthesis"}), "no OPT-Code in it"),
        (json.dumps({"rationale": "r", "choice": 1, "opt": EVO}), "choice is '1'"),
    ],
)
def test_no_choice(text: str, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        read_choice(text, SHOWN)


def test_choice_between_equal_codes_is_the_one_named() -> None:
    shown: Candidates = {"first": FIRST, "second": FIRST}
    assert read_choice(settled("second", "Ctl"), shown).choice == "second"
    assert read_choice(settled("synthesis", "Ctl"), shown).choice == "first"


def test_choice_in_words() -> None:
    assert read_choice_word('{"reason": "r", "word": "learning"}', SHOWN).choice == "second"
    reply = read_choice_word('{"reason": "r", "word": "swarm"}', SHOWN)
    assert (reply.choice, str(reply.label)) == ("synthesis", "OPT=Swm")


def test_clean_leaves_only_what_a_database_takes() -> None:
    assert clean("a\0b\ud800c\U0001f600") == "a\ufffdb\ufffdc\U0001f600"
    reply = read_code('{"rationale": "a\\ud800\\u0000", "opt": "OPT=Evo"}')
    assert reply.rationale == "a\ufffd\ufffd"


READERS: list[Callable[[str, str], object]] = [
    read_code,
    read_word,
    read_report,
    read_grade,
    lambda text, finish_reason: read_choice(text, SHOWN, finish_reason),
    lambda text, finish_reason: read_choice_word(text, SHOWN, finish_reason),
]


@given(
    text=st.text() | st.text(alphabet='{}[]":,\\OPT=Evo+/;<think>verdictscore0189 \n'),
    finish_reason=st.sampled_from(["stop", "length", "content_filter", ""]),
    reader=st.sampled_from(READERS),
)
def test_any_text_is_read_or_refused(
    text: str, finish_reason: str, reader: Callable[[str, str], object]
) -> None:
    try:
        reply = reader(text, finish_reason)
    except UnreadableError as error:
        assert str(error)
    else:
        assert reply is not None


def test_reply_nested_to_the_limit_of_the_stack_is_refused() -> None:
    for depth in range(800, 1000):
        nested = "[" * depth + "]" * depth
        with pytest.raises(UnreadableError):
            read_report(f'{{"summary": "x", "issues": [], "score": {nested}, "verdict": "PASS"}}')


def test_candidates_are_codes() -> None:
    assert all(isinstance(code, OptCode) for code in SHOWN.values())
