import pickle
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import UnexpectedInput

from raylab.label.codebooks.codebook import Label
from raylab.label.opt.code import FIELDS, OptCodeError, Repair, Root, bare, parse, read_canonical

FULL_LINE = "OPT=Evo/Lrn+Ctl; Rep=param; Obj=fitness; Data=sim; Time=gen; Human=low"
FAST = settings(suppress_health_check=[HealthCheck.too_slow])


def is_strict(text: str, read: Callable[[str], Label] | None = None) -> bool:
    try:
        _ = read(text) if read else parse(text, strict=True)
    except OptCodeError:
        return False
    return True


# Roots and lines


def test_the_published_line_is_read_as_it_stands():
    code = parse(FULL_LINE, strict=True)
    assert [*code.fields.items()] == [
        *(("Rep", "param"), ("Obj", "fitness"), ("Data", "sim"), ("Time", "gen"), ("Human", "low"))
    ]
    assert code.parts == (("", Root.EVO), ("/", Root.LRN), ("+", Root.CTL))
    assert code.categories == {Root.EVO, Root.LRN, Root.CTL}
    assert (code.primary, code.composition) == (Root.EVO, "Evo/Lrn+Ctl")
    assert (code.repairs, str(code), parse(FULL_LINE)) == ((), FULL_LINE, code)
    assert read_canonical(FULL_LINE) == code == pickle.loads(pickle.dumps(code))


@pytest.mark.parametrize(
    ("line", "composition"),
    [
        ("OPT = Sch + Lrn", "Lrn+Sch"),
        ("OPT=Swm+Ctl+Sch+Prb+Sym+Evo+Lrn", "Lrn+Evo+Sym+Prb+Sch+Ctl+Swm"),
        # `/` keeps its order; only neighbours joined by `+` are sorted.
        ("OPT=Sch+Lrn/Evo", "Lrn+Sch/Evo"),
        ("OPT=Evo/Sch+Swm+Lrn", "Evo/Sch+Lrn+Swm"),
        # v1.0 forms, translated: the outer mechanism first, branches side by side, stages in order.
        ("OPT=Sym{Lrn,Prb}", "Sym/Lrn+Prb"),
        ("OPT=[[Lrn→Ctl]→Evo]", "Lrn/Ctl/Evo"),
        ("OPT=[Ctl→Sch+Lrn]", "Ctl/Lrn+Sch"),
        ("OPT=Sym{[Sch→Lrn],Prb+Evo}", "Sym/Evo+Prb+Sch/Lrn"),
        # Behind `+` nothing can be grouped, so the composed operand goes first.
        ("OPT=Ctl+[Evo→Sch]", "Evo/Sch+Ctl"),
    ],
)
def test_canonical_composition(line: str, composition: str):
    code = parse(line, strict=True)
    assert (code.composition, str(code), code.repairs) == (composition, f"OPT={composition}", ())
    assert parse(str(code), strict=True) == read_canonical(str(code)) == code
    assert code.written == line.replace(" ", "") and parse(code.written, strict=True) == code


def test_only_canonical_lines_are_read_as_such():
    lines = ("OPT=Sch+Lrn", "OPT=Lrn;Rep=a", "OPT=Lrn; Rep=a b", "OPT=Lrn; Rep", "OPT=lrn")
    for line in (*lines, "OPT=Lrn; Obj=b; Rep=a", "OPT=Lrn; Rep=a; Rep=b"):
        with pytest.raises(OptCodeError):
            read_canonical(line)


# Repairs

REPAIRS = [
    # (text, canonical line, kinds of repair)
    ("OPT=Lrn\xa0+ Sch;\u2003Rep=a", "OPT=Lrn+Sch; Rep=a", "CHARACTERS"),
    ("\ufeffOPT=L\u200brn+\u200dSch", "OPT=Lrn+Sch", "CHARACTERS"),
    ("OPT＝Lrn＋Sch／Ctl；Rep＝a", "OPT=Lrn+Sch/Ctl; Rep=a", "CHARACTERS"),  # noqa: RUF001
    ("OPT=[Lrn->Ctl]", "OPT=Lrn/Ctl", "OPERATORS"),
    ("`OPT=Lrn; Rep=a`", "OPT=Lrn; Rep=a", "MARKUP FIELDS"),
    ("<code>OPT=Lrn; Rep=a</code>", "OPT=Lrn; Rep=a", "MARKUP FIELDS"),
    ("```opt\nOPT=Lrn; Rep=a\n```\n", "OPT=Lrn; Rep=a", "MARKUP AROUND"),
    ("Final OPT-Code: Lrn+Sch", "OPT=Lrn+Sch", "MARKUP MARKER"),
    ("Lrn+Sch", "OPT=Lrn+Sch", "MARKER"),
    ("opt=LRN+sch; rep=a", "OPT=Lrn+Sch; Rep=a", "MARKER NAMES FIELDS"),
    ("OPT=learning+Swarmon", "OPT=Lrn+Swm", "NAMES"),
    ("OPT=Sch & Evo and\nLrn; Rep=a", "OPT=Lrn+Evo+Sch; Rep=a", "MARKUP OPERATORS"),
    ("OPT=Evo/(Lrn+Ctl)", "OPT=Evo/Lrn+Ctl", "OPERATORS"),
    ("OPT={Lrn, Sch}", "OPT=Lrn+Sch", "OPERATORS"),
    ("OPT=Lrn; Rep=net (all weights); Obj=b", "OPT=Lrn; Rep=net; Obj=b", "FIELDS AROUND"),
    ("OPT=Lrn+Lrn/Evo/Lrn", "OPT=Lrn/Evo", "OPERATORS"),
    ("OPT=Lrn, Rep=a, Obj=b", "OPT=Lrn; Rep=a; Obj=b", "FIELDS"),
    ("OPT=Lrn Rep=a", "OPT=Lrn; Rep=a", "FIELDS"),
    ("OPT=Lrn; Rep: a", "OPT=Lrn; Rep=a", "FIELDS"),
    ("OPT=Lrn; Representation=a", "OPT=Lrn; Rep=a", "NAMES FIELDS"),
    ("OPT=Lrn; Rep=a b; Obj=c/d", "OPT=Lrn; Rep=a-b; Obj=c-d", "FIELDS"),
    ("OPT=Lrn; Rep=réseau", "OPT=Lrn; Rep=reseau", "FIELDS"),
    ("OPT=Lrn; Rep=<rep>; Obj=b", "OPT=Lrn; Obj=b", "MARKUP FIELDS"),
    ("OPT=<roots>; Rep=<...>\nOPT=Lrn; Rep=a", "OPT=Lrn; Rep=a", "SEVERAL AROUND"),
    ("OPT=Lrn; Rep=a; Rep=b", "OPT=Lrn; Rep=a+b", "FIELDS"),
    ("OPT=Lrn; Obj=b; Rep=a", "OPT=Lrn; Rep=a; Obj=b", "FIELDS"),
    ("OPT=Evo; Rep=a\nOPT=Lrn; Rep=b", "OPT=Lrn; Rep=b", "SEVERAL AROUND"),
    ("> OPT=Lrn", "OPT=Lrn", "MARKUP"),
    ('{"opt": "OPT=Lrn; Rep=a"}', "OPT=Lrn; Rep=a", "MARKUP FIELDS"),
    ("OPT=Lrn; Human=low. Weights move.", "OPT=Lrn; Human=low", "FIELDS AROUND"),
    ("I would say OPT=Lrn here.", "OPT=Lrn", "AROUND"),
]


@pytest.mark.parametrize(("text", "line", "repairs"), REPAIRS)
def test_every_repair_is_made_and_recorded(text: str, line: str, repairs: str):
    code = parse(text)
    assert (str(code), code.repairs) == (line, tuple(Repair[name] for name in repairs.split()))
    assert parse(line) == code
    assert not is_strict(text)


# Whole replies

REPLY = """<think>
The user wants OPT=Swm; Rep=agents? No, OPT=Prb.
</think>
Your description says "OPT=Sym" and

> OPT=Evo; Rep=quoted

**Final OPT-Code:**

```text
OPT=Sch+Lrn; Rep=param; Obj=loss; Data=labelled
Time=epoch; Human=low
```

**Rationale:** A network is trained. It is not OPT=Swm, since: no agents.
"""


def test_a_long_reply_gives_its_last_line_outside_thoughts_and_quotes():
    code = parse(REPLY)
    assert str(code) == "OPT=Lrn+Sch; Rep=param; Obj=loss; Data=labelled; Time=epoch; Human=low"
    assert set(code.repairs) == {Repair.FIELDS, Repair.SEVERAL, Repair.AROUND}


@pytest.mark.parametrize(
    ("text", "composition"),
    [
        ("<description>OPT=Evo</description>\nOPT=Lrn\n<description>OPT=Swm</description>", "Lrn"),
        ("thoughts: OPT=Evo\n</think>\nOPT=Lrn", "Lrn"),
        ("OPT=Lrn\nNote: a swarm would be OPT=Swm.", "Lrn"),
        ('{"opt": "OPT=Evo"}\nOn reflection:\n{"opt": "OPT=Lrn"}', "Lrn"),
        ("INTENT-OPT=Sch/Evo\nOPT=Lrn", "Lrn"),
        ("| OPT=Lrn | Rep=a |", "Lrn"),
    ],
)
def test_replies(text: str, composition: str):
    assert parse(text).composition == composition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no OPT-Code: expected a line such as"),
        ("<think>OPT=Lrn; I am cut off", "no OPT-Code"),
        ("<description>OPT=Lrn</description>", "no OPT-Code"),
        ("INTENT-OPT=Sch/Evo", "no OPT-Code"),
        ("OPT=<roots>; Rep=<...>", "column 6: expected a root"),
        ("- Lrn\n- Evo", "no OPT-Code"),
        ("The answer is Lrn", "no OPT-Code"),
        ("OPT=Lrn+Foo", "column 9: .*a root .*found 'Foo'"),
        ("OPT=Lrn Sch", "column 9: expected .* found 'Sch'"),
        ("OPT=Lrn++Sch", "column 9: .*found '[+]"),
        ("OPT=Sym{Lrn; Rep=a", "column 12: expected '}', found ';'"),
        ('{"opt": null}', "no OPT-Code"),
    ],
)
def test_what_holds_no_code_is_refused(text: str, message: str):
    with pytest.raises(OptCodeError, match=message):
        parse(text)


def test_an_error_names_the_column():
    with pytest.raises(OptCodeError, match=r"^column 8: expected '; key=value' or the end, found"):
        parse("OPT=Lrn; Rep=a\0b", strict=True)
    # 4 characters of OPT=, 200 times four of Lrn+
    with pytest.raises(OptCodeError, match=r"^column 805: expected a root .*, found 'Lnr'$"):
        parse("OPT=" + "+".join(["Lrn"] * 200) + "+Lnr+Evo", strict=True)


# Properties

ROOTS = st.sampled_from(list(Root)).map(str)


def _composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        several.map("+".join),
        several.map("/".join),
        several.map(lambda parts: f"[{'→'.join(parts)}]"),
        st.tuples(ROOTS, several).map(lambda pair: f"{pair[0]}{{{','.join(pair[1])}}}"),
    )


FRAGMENTS = st.sampled_from(
    [
        *("OPT", "=", ":", "OPT=", "OPT=", "opt-code:", "INTENT-OPT=", "Lrn", "Evo", "sym"),
        *("Learnon", "learning", "+", "/", "&", ",", "and", "\u2192", "->", *"[]{}()<>", ";"),
        *("<roots>", "...", "Rep", "=param", "Obj=fitness", "Human=low", "Zed=1", "Locus=x"),
        *("\n", "\r\n", " ", "\u00a0", "\u200b", "\u2013", "\uff1d", "\0", "\ud800", "_"),
        *("`", "```", "```yaml\n", "**", '"', '"""', "> ", "- ", "1. ", '{"opt": "', '"}'),
        *("Final OPT-Code: ", "Rationale: it", "<think>", "</think>", "Rep=", "rep: a"),
    ]
)
EXPRESSIONS = st.recursive(ROOTS, _composed, max_leaves=8)
KEYS = st.one_of(st.sampled_from(FIELDS), st.from_regex("Z[A-Za-z0-9_-]{0,8}", fullmatch=True))
VALUES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9+_.,-]{0,9}[A-Za-z0-9+_-])?", fullmatch=True)


@FAST
@given(EXPRESSIONS, st.dictionaries(KEYS, VALUES, max_size=5))
def test_reading_what_was_written_gives_the_same_code(expression: str, fields: dict[str, str]):
    code = parse(f"OPT={expression}" + "".join(f"; {key}={fields[key]}" for key in fields))
    assert parse(str(code)) == parse(code.written) == read_canonical(str(code)) == code
    assert code.fields == fields and set(code.repairs) <= {Repair.FIELDS, Repair.OPERATORS}
    assert code.categories == {Root(name) for name in re.findall("[A-Z][a-z]{2}", expression)}
    assert is_strict(str(code)) == (fields.keys() <= set(FIELDS))
    assert parse(expression).composition == code.composition


GRAMMAR = Lark.open("opt_code.lark", rel_to=__file__, parser="lalr", start=["line", "bare"])
"""The published notations, written down apart from the reader."""


def is_published(text: str, start: str = "line") -> bool:
    """Whether the grammar accepts a text, with distinct roots and known keys in order."""
    try:
        tokens = list(GRAMMAR.parse(text.strip(" \t\n"), start=start).scan_values(lambda _: True))
    except UnexpectedInput:
        return False
    roots = [str(token) for token in tokens if token.type == "ROOT"]
    keys = [str(token) for token in tokens if token.type == "KEY"]
    ordered = any(
        keys == [key for key in order if key in keys]
        for order in (FIELDS, ("Rep", "Locus", "Obj", "Data", "Time", "Human"))
    )
    return len(set(roots)) == len(roots) and ordered


LINES = st.tuples(EXPRESSIONS, st.lists(st.tuples(KEYS, VALUES), max_size=4)).map(
    lambda line: f"OPT={line[0]}" + "".join(f"; {key}={value}" for key, value in line[1])
)
CUT = st.tuples(LINES, st.integers(0, 60), st.sampled_from([*" +/{}[],;=.→x", "Lrn", ""])).map(
    lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] + 1 :]
)


@FAST
@given(st.one_of(LINES, CUT, st.lists(FRAGMENTS, max_size=8).map("".join)))
def test_strict_is_what_the_grammar_accepts(text: str):
    assert is_strict(text) == is_published(text)
    text = text.removeprefix("OPT=")
    assert is_strict(text, bare) == is_published(text, "bare")


ANYTHING = st.one_of(
    st.lists(FRAGMENTS, max_size=14).map("".join),
    st.lists(FRAGMENTS, max_size=10).map(lambda parts: "OPT=Lrn" + "".join(parts)),
    st.text(st.characters(exclude_categories=())),
)


@FAST
@given(ANYTHING)
def test_any_text_gives_a_code_or_the_error(text: str):
    try:
        code = parse(text)
    except OptCodeError as error:
        assert str(error).encode()
        assert not is_strict(text)
        return
    assert parse(str(code)) == code
    assert is_strict(text) == (not code.repairs)


def test_depth_and_length_are_limited():
    deep = "[" * 16 + "Lrn" + "→Evo]" * 16
    assert parse(f"OPT={deep}").composition == "Lrn/Evo"
    for strict in (True, False):
        with pytest.raises(OptCodeError, match="more than 16 brackets"):
            parse(f"OPT=[{deep}→Lrn]", strict=strict)
        with pytest.raises(OptCodeError):
            parse("OPT=" + "+".join(["Lrn"] * 2000), strict=strict)
    with pytest.raises(OptCodeError, match="200,001 characters is too long"):
        parse("x" * 200_001)
