import json
import pickle
import re
from importlib import resources

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import UnexpectedInput

from raylab.errors import OptCodeError
from raylab.opt.code import bare, parse, read_canonical
from raylab.opt.notation import FIELDS, Repair, Root

FULL_LINE = "OPT=Evo/Lrn+Ctl; Rep=param; Obj=fitness; Data=sim; Time=gen; Human=low"
FAST = settings(suppress_health_check=[HealthCheck.too_slow])


def is_strict(text: str) -> bool:
    try:
        parse(text, strict=True)
    except OptCodeError:
        return False
    return True


def is_bare(text: str) -> bool:
    try:
        bare(text)
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
        ("OPT=Lrn", "Lrn"),
        ("OPT = Sch + Lrn", "Lrn+Sch"),
        ("OPT=Swm+Ctl+Sch+Prb+Sym+Evo+Lrn", "Lrn+Evo+Sym+Prb+Sch+Ctl+Swm"),
        # `/` keeps its order; only neighbours joined by `+` are sorted.
        ("OPT=Sch/Lrn", "Sch/Lrn"),
        ("OPT=Sch+Lrn/Evo", "Lrn+Sch/Evo"),
        ("OPT=Evo/Sch+Swm+Lrn", "Evo/Sch+Lrn+Swm"),
        ("OPT=Evo/Sch+Lrn/Sym", "Evo/Sch+Lrn/Sym"),
        # v1.0 forms, translated: the outer mechanism first, branches side by side, stages in order.
        ("OPT=Sym{Lrn,Prb}", "Sym/Lrn+Prb"),
        ("OPT=Sym{Prb,Lrn}", "Sym/Lrn+Prb"),
        ("OPT=[Lrn→Ctl]", "Lrn/Ctl"),
        ("OPT=[Lrn→Ctl→Evo]", "Lrn/Ctl/Evo"),
        ("OPT=[Sch+Lrn→Ctl]", "Lrn+Sch/Ctl"),
        ("OPT=[[Lrn→Ctl]→Evo]", "Lrn/Ctl/Evo"),
        ("OPT=[Ctl→Sch+Lrn]", "Ctl/Lrn+Sch"),
        ("OPT=Sym{[Sch→Lrn],Prb+Evo}", "Sym/Evo+Prb+Sch/Lrn"),
        # Behind `+` nothing can be grouped, so the composed operand goes first.
        ("OPT=Ctl+[Evo→Sch]", "Evo/Sch+Ctl"),
        ("OPT=Ctl+Sym{Lrn,Prb}", "Sym/Lrn+Prb+Ctl"),
    ],
)
def test_canonical_composition(line: str, composition: str):
    code = parse(line, strict=True)
    assert (code.composition, str(code), code.repairs) == (composition, f"OPT={composition}", ())
    assert parse(str(code), strict=True) == read_canonical(str(code)) == code
    assert code.written == line.replace(" ", "") and parse(code.written, strict=True) == code


def test_codes_are_equal_by_their_canonical_line():
    assert parse("OPT=Sch+Lrn") == parse("OPT: lrn and search")
    assert parse("OPT=[Lrn→Ctl]") == parse("OPT=Lrn/Ctl") != parse("OPT=Ctl/Lrn")
    assert parse("OPT=Lrn; Rep=a") != parse("OPT=Lrn; Rep=b")
    assert len({parse("OPT=Sch+Lrn"), parse("OPT=Lrn+Sch")}) == 1


def test_only_canonical_lines_are_read_as_such():
    for line in ("OPT=Sch+Lrn", "OPT=Lrn;Rep=a", "OPT=Lrn; Rep=a b", "OPT=Lrn; Rep", "OPT=lrn"):
        with pytest.raises(OptCodeError):
            read_canonical(line)


# Repairs

REPAIRS = [
    # (text, composition, fields, kinds of repair)
    ("OPT=Lrn\r\n", "Lrn", {}, {Repair.CHARACTERS}),
    ("OPT=Lrn\xa0+ Sch;\u2003Rep=a", "Lrn+Sch", {"Rep": "a"}, {Repair.CHARACTERS}),
    ("\ufeffOPT=L\u200brn+\u200dSch", "Lrn+Sch", {}, {Repair.CHARACTERS}),
    ("OPT=Lrn\x00", "Lrn", {}, {Repair.CHARACTERS}),
    *(
        (f"OPT{dash}Code=Lrn", "Lrn", {}, {Repair.CHARACTERS, Repair.MARKER})
        for dash in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
    ),
    ("OPT=Lrn; Rep=real\u2013valued", "Lrn", {"Rep": "real-valued"}, {Repair.CHARACTERS}),
    ("OPT＝Lrn＋Sch／Ctl；Rep＝a", "Lrn+Sch/Ctl", {"Rep": "a"}, {Repair.CHARACTERS}),  # noqa: RUF001
    *((f"OPT=[Lrn{arrow}Ctl]", "Lrn/Ctl", {}, {Repair.OPERATORS}) for arrow in ("->", "=>", "⟶")),
    ("OPT=Lrn → Ctl", "Lrn/Ctl", {}, {Repair.OPERATORS}),
    ("`OPT=Lrn; Rep=a`", "Lrn", {"Rep": "a"}, {Repair.MARKUP, Repair.FIELDS}),
    ("**OPT=Lrn; Rep=a**", "Lrn", {"Rep": "a"}, {Repair.MARKUP, Repair.FIELDS}),
    ('"OPT=Lrn"', "Lrn", {}, {Repair.MARKUP}),
    ("- OPT=Lrn", "Lrn", {}, {Repair.MARKUP}),
    ("1. OPT=Lrn", "Lrn", {}, {Repair.MARKUP}),
    ("OPT=Lrn; Human=low.", "Lrn", {"Human": "low"}, {Repair.MARKUP, Repair.FIELDS}),
    ("<code>OPT=Lrn; Rep=a</code>", "Lrn", {"Rep": "a"}, {Repair.MARKUP, Repair.FIELDS}),
    ("```\nOPT=Lrn\n```", "Lrn", {}, {Repair.MARKUP}),
    ("```opt\nOPT=Lrn; Rep=a\n```\n", "Lrn", {"Rep": "a"}, {Repair.MARKUP}),
    ("Final OPT-Code: OPT=Lrn", "Lrn", {}, {Repair.MARKUP}),
    ("**Final OPT-Code:** OPT=Lrn", "Lrn", {}, {Repair.MARKUP}),
    ("Final OPT-Code: Lrn+Sch", "Lrn+Sch", {}, {Repair.MARKUP, Repair.MARKER}),
    ("OPT: Lrn", "Lrn", {}, {Repair.MARKER}),
    ("OPT-Code = Lrn", "Lrn", {}, {Repair.MARKER}),
    ("OPT Code: Lrn", "Lrn", {}, {Repair.MARKER}),
    ("OPT_Code=Lrn", "Lrn", {}, {Repair.MARKER}),
    ("Lrn+Sch", "Lrn+Sch", {}, {Repair.MARKER}),
    ("Sym{Lrn,Prb}; Rep=a", "Sym/Lrn+Prb", {"Rep": "a"}, {Repair.MARKER}),
    ("opt=LRN+sch; rep=a", "Lrn+Sch", {"Rep": "a"}, {Repair.MARKER, Repair.NAMES, Repair.FIELDS}),
    ("OPT=Learnon+Symon/swarmon", "Lrn+Sym/Swm", {}, {Repair.NAMES}),
    ("OPT=learning+Swarm", "Lrn+Swm", {}, {Repair.NAMES}),
    ("OPT=Sch & Lrn", "Lrn+Sch", {}, {Repair.OPERATORS}),
    ("OPT=Sch, Lrn", "Lrn+Sch", {}, {Repair.OPERATORS}),
    ("OPT=Sch and Lrn; Rep=a", "Lrn+Sch", {"Rep": "a"}, {Repair.OPERATORS}),
    ("OPT=Evo/(Lrn+Ctl)", "Evo/Lrn+Ctl", {}, {Repair.OPERATORS}),
    ("OPT=[Lrn]", "Lrn", {}, {Repair.OPERATORS}),
    ("OPT={Lrn, Sch}", "Lrn+Sch", {}, {Repair.OPERATORS}),
    ("OPT=<Lrn+Sch>", "Lrn+Sch", {}, {Repair.OPERATORS}),
    (
        "OPT=Lrn; Rep=net (all weights); Obj=b",
        "Lrn",
        {"Rep": "net", "Obj": "b"},
        {Repair.FIELDS, Repair.AROUND},
    ),
    ("OPT=Lrn+Lrn/Evo/Lrn", "Lrn/Evo", {}, {Repair.OPERATORS}),
    ("OPT=Lrn+\nSch", "Lrn+Sch", {}, {Repair.MARKUP}),
    ("OPT=Lrn, Rep=a, Obj=b", "Lrn", {"Rep": "a", "Obj": "b"}, {Repair.MARKUP, Repair.FIELDS}),
    ("OPT=Lrn\nRep=a\nObj=b", "Lrn", {"Rep": "a", "Obj": "b"}, {Repair.FIELDS}),
    ("OPT=Lrn Rep=a", "Lrn", {"Rep": "a"}, {Repair.FIELDS}),
    ("OPT=Lrn; Rep=a;", "Lrn", {"Rep": "a"}, {Repair.FIELDS}),
    ("OPT=Lrn; Rep: a", "Lrn", {"Rep": "a"}, {Repair.FIELDS}),
    ("OPT=Lrn; Representation=a", "Lrn", {"Rep": "a"}, {Repair.NAMES, Repair.FIELDS}),
    ("OPT=Lrn; Rep=a b; Obj=c/d", "Lrn", {"Rep": "a-b", "Obj": "c-d"}, {Repair.FIELDS}),
    ("OPT=Lrn; Rep=réseau", "Lrn", {"Rep": "reseau"}, {Repair.FIELDS}),
    ("OPT=Lrn; Rep=; Obj=b", "Lrn", {"Obj": "b"}, {Repair.FIELDS}),
    ("OPT=Lrn; Rep=<rep>; Obj=b", "Lrn", {"Obj": "b"}, {Repair.FIELDS, Repair.SEVERAL}),
    ("OPT=Lrn; Rep=...; Obj=b", "Lrn", {"Obj": "b"}, {Repair.FIELDS, Repair.SEVERAL}),
    (
        "OPT=<roots>; Rep=<...>\nOPT=Lrn; Rep=a",
        "Lrn",
        {"Rep": "a"},
        {Repair.SEVERAL, Repair.AROUND},
    ),
    ("OPT=Lrn; Rep=a; Rep=a", "Lrn", {"Rep": "a"}, {Repair.FIELDS}),
    ("OPT=Lrn; Rep=a; Rep=b", "Lrn", {"Rep": "a+b"}, {Repair.FIELDS}),
    ("OPT=Lrn; Obj=b; Rep=a", "Lrn", {"Rep": "a", "Obj": "b"}, {Repair.FIELDS}),
    ("OPT=Lrn; Risk=x; Rep=a", "Lrn", {"Rep": "a", "Risk": "x"}, {Repair.FIELDS}),
    ("OPT=Evo; Rep=a\nOPT=Lrn; Rep=b", "Lrn", {"Rep": "b"}, {Repair.SEVERAL, Repair.AROUND}),
    ("OPT=Lrn; Rep=a OPT=Evo", "Lrn", {"Rep": "a"}, {Repair.SEVERAL, Repair.AROUND}),
    ("> OPT=Lrn", "Lrn", {}, {Repair.MARKUP, Repair.SEVERAL}),
    ('"""OPT=Lrn"""', "Lrn", {}, {Repair.MARKUP, Repair.SEVERAL}),
    ('{"opt": "OPT=Lrn; Rep=a"}', "Lrn", {"Rep": "a"}, {Repair.AROUND}),
    ('{"roots": ["Lrn", "Sch"], "rep": "a"}', "Lrn+Sch", {"Rep": "a"}, {Repair.AROUND}),
    (
        '```json\n{"code": {"OPT": "Evo/Lrn", "fields": {"Time": "gen"}}}\n```',
        "Evo/Lrn",
        {"Time": "gen"},
        {Repair.MARKUP, Repair.AROUND},
    ),
    ("OPT: Lrn+Sch\nRep: a\n", "Lrn+Sch", {"Rep": "a"}, {Repair.MARKER, Repair.FIELDS}),
    (
        "```yaml\nopt:\n  roots: [Lrn, Sch]\n  human: low\n```",
        "Lrn+Sch",
        {"Human": "low"},
        {
            Repair.MARKUP,
            Repair.MARKER,
            Repair.NAMES,
            Repair.OPERATORS,
            Repair.FIELDS,
            Repair.AROUND,
        },
    ),
    ("It is so: weights move.\n\nOPT=Lrn", "Lrn", {}, {Repair.AROUND}),
    ("OPT=Lrn; Human=low. Weights move.", "Lrn", {"Human": "low"}, {Repair.FIELDS, Repair.AROUND}),
    ("I would say OPT=Lrn here.", "Lrn", {}, {Repair.AROUND}),
]


@pytest.mark.parametrize(("text", "composition", "fields", "repairs"), REPAIRS)
def test_every_repair_is_made_and_recorded(
    text: str, composition: str, fields: dict[str, str], repairs: set[Repair]
):
    code = parse(text)
    assert (code.composition, dict(code.fields)) == (composition, fields)
    assert set(code.repairs) == repairs
    assert list(code.repairs) == [repair for repair in Repair if repair in repairs]
    assert parse(str(code)) == code
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
    assert str(code) == ("OPT=Lrn+Sch; Rep=param; Obj=loss; Data=labelled; Time=epoch; Human=low")
    expected = {Repair.FIELDS, Repair.SEVERAL, Repair.AROUND}
    assert set(code.repairs) == expected


@pytest.mark.parametrize(
    ("text", "composition"),
    [
        ("<description>OPT=Evo</description>\nOPT=Lrn\n<description>OPT=Swm</description>", "Lrn"),
        ("thoughts: OPT=Evo\n</think>\nOPT=Lrn", "Lrn"),
        ('"""\nOPT=Evo\n"""\nThe code is OPT=Lrn.', "Lrn"),
        ("OPT=Lrn\nNote: a swarm would be OPT=Swm.", "Lrn"),
        ('{"description": "OPT=Evo", "opt_code": "OPT=Lrn; Rep=a", "rationale": "OPT=Swm"}', "Lrn"),
        ('{"opt_code": "OPT=Lrn; Rep=a", "rationale": "cut o', "Lrn"),
        ('{"answer": "OPT=Lrn", "why": "x"}', "Lrn"),
        ('{"opt": "OPT=Evo"}\nOn reflection:\n{"opt": "OPT=Lrn"}', "Lrn"),
        ("{" * 40 + '{"opt": "Lrn"}', "Lrn"),
        ("OPT=\nLrn+Sch", "Lrn+Sch"),
        ("Final OPT-Code:\nOPT=Lrn", "Lrn"),
        ("OPT=Lrn, because it learns", "Lrn"),
        ("OPT=Lrn - the weights move", "Lrn"),
        ("Answer: Lrn", "Lrn"),
        ("INTENT-OPT=Sch/Evo\nOPT=Lrn", "Lrn"),
        ("| OPT=Lrn | Rep=a |", "Lrn"),
        ("Lrn\n\nLrn\n", "Lrn"),
    ],
)
def test_replies(text: str, composition: str):
    assert parse(text).composition == composition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no OPT-Code: expected a line such as"),
        ("It learns.", "no OPT-Code"),
        ("<think>OPT=Lrn; I am cut off", "no OPT-Code"),
        ("<description>OPT=Lrn</description>", "no OPT-Code"),
        ("INTENT-OPT=Sch/Evo", "no OPT-Code"),
        ("OPT=<roots>; Rep=<...>", "found only the placeholder"),
        ("- Lrn\n- Evo", "several codes without it: Lrn, Evo"),
        ("OPT=Lrn+Foo", "column 9: .*a root .*found 'Foo'"),
        ("so OPT=Lrn+", "column 9: .*found the end"),
        ("OPT=Lrn Sch", "column 9: expected .* found 'Sch'"),
        ("OPT=Lrn-Sch", "column 5: .*found 'Lrn-Sch'|column 8"),
        ("OPT=Lrn++Sch", "column 9: .*found '[+]"),
        ("OPT=Lrn=a", "column 8: .*found '='"),
        ("OPT=Evo(Lrn)", "column 8"),
        ("OPT=none", "column 5: expected .*a root"),
        ("OPT=Sym{Lrn; Rep=a", "column 12: expected ',' or.*found ';'"),
        ("OPT=; Rep=a", "column 5: expected .*found ';'"),
        ('{"opt": null}', "no OPT-Code"),
    ],
)
def test_what_holds_no_code_is_refused(text: str, message: str):
    with pytest.raises(OptCodeError, match=message):
        parse(text)


def test_an_error_points_at_the_column():
    with pytest.raises(OptCodeError) as caught:
        parse("OPT=Lrn; Rep=a\0b", strict=True)
    message, shown, pointer = str(caught.value).splitlines()
    assert message == "column 8: expected '; key=value' or the end, found ';'"
    assert shown[pointer.index("^") :].startswith("; Rep=a\\x00b")
    with pytest.raises(OptCodeError) as caught:
        parse("OPT=" + "+".join(["Lrn"] * 200) + "+Lnr+Evo", strict=True)
    message, shown, pointer = str(caught.value).splitlines()
    # 4 characters of OPT=, 200 times four of Lrn+
    assert message.startswith("column 805:")
    assert shown[pointer.index("^") :].startswith("Lnr+Evo")


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
    assert code.primary is Root(code.composition[:3])
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
    assert is_bare(text.removeprefix("OPT=")) == is_published(text.removeprefix("OPT="), "bare")


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        *("[", "{", "(", "<", '{"', '{"a":', "<input>", "<think>", '"""', "```\n", "\n", "\0"),
        *("OPT=", "OPT=\n", "OPT=Lrn+", "OPT=Lrn\n", "Lrn/", "Lrn\n", " ", "\ud800", "> ", "A: "),
        *("; Rep=a", "opt:\n ", '{"opt": "Lrn"} '),
    ],
)
def test_a_megabyte_takes_bounded_time(piece: str):
    text = piece * (1_000_000 // len(piece))
    for reader in (parse, bare):
        with pytest.raises(OptCodeError):
            reader(text)
    with pytest.raises(OptCodeError):
        parse(text, strict=True)
    for start in ("", "OPT=", "OPT=Lrn; Rep="):
        try:
            parse((start + text)[:100_000])
        except OptCodeError as error:
            assert len(str(error)) < 1000


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


# The packaged tables


def rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("raylab.opt") / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("row", rows("gold.jsonl") + rows("proposed.jsonl"), ids=lambda r: r["id"])
def test_every_gold_code_is_read_and_keeps_its_roots(row: dict[str, str]):
    code = parse(row["gold"])
    expression = row["gold"].removeprefix("OPT=").partition(";")[0]
    assert code.categories == {Root(name) for name in re.findall("[A-Z][a-z]{2}", expression)}
    assert set(code.repairs) <= {Repair.MARKER}
    assert code.written.removeprefix("OPT=") == row["gold"].removeprefix("OPT=")
