"""OPT-Codes, read strictly or found in a model's reply, and written in canonical form.

    code = parse("The answer is `opt: learning & Sch`, since ...")
    str(code)           # OPT=Lrn+Sch
    code.repairs        # the kinds of repairs

Every step of the search takes time linear in the length of the text, or is tried a fixed number of
times.
"""

import json
import re
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

from raylab.codebook import Label, drop_asides
from raylab.opt.notation import (
    ALL_NAMES,
    HTML_TAG,
    KEY,
    KEYS,
    LONGEST_LINE,
    MARK,
    NAMES,
    PLACEHOLDER,
    PLAIN,
    VALUE,
    OptCodeError,
    Reader,
    Repair,
    Root,
    begins_operand,
    escape,
    repairs_by_dropping,
    sort_keys,
    sort_repairs,
)

LONGEST_TEXT = 200_000
"""Longest text that is searched, in characters."""
BARE_TRIES = 64
"""Lines without `OPT=` that are read as codes."""
QUOTATION = re.compile(r'"""[\s\S]*?"""|^[ \t]*>.*$', re.MULTILINE)
CODE_KEYS = (
    *("opt-code", "optcode", "final-opt-code", "opt-line", "opt", "line", "code"),
    *("composition", "expression", "roots", "root"),
)
"""Keys under which a JSON object may hold a code, the most specific first."""
ROOT_NAMES = f"(?:{'|'.join(NAMES)})"
EXACT_MARKER = re.compile(r"OPT[ \t]*=")
CANONICAL = re.compile(rf"(OPT=[^;]*)((?:; {KEY.pattern}={VALUE.pattern})*)")
MARKER = re.compile(
    rf"(?<![\w-])OPT(?P<code>[ _-]{{0,3}}Code)?[ \t{MARK}]{{0,8}}(?P<sign>[=:])", re.IGNORECASE
)
LONGEST_LABEL = 100
LABEL = re.compile(
    rf"[\s>•‣{MARK}-]*+(?:\(?\d{{1,3}}[.):])?+[\s>•{MARK}{{(\[,-]*+"
    rf"(?:[^.!?;:=]{{1,60}}[:=][ \t{MARK}]*|(?P<title>(?:\S++\s*+){{0,4}}+))"
)
"""What may stand before a code on its line: a bullet and a label, or the title of `OPT-Code`."""
FENCE = re.compile(r"^[ \t]*(?:```|~~~)\w*[ \t]*$", re.MULTILINE)
BARE = re.compile(
    rf"^[ \t>•{MARK}-]*+(?:(?!{ROOT_NAMES}\b)[^.!?;:=\n]{{1,60}}:[ \t{MARK}]++)?+"
    rf"(?P<code>[ \t>•{MARK}\[({{-]*{ROOT_NAMES}(?![\w-])(?![ \t]*:))",
    re.IGNORECASE | re.MULTILINE,
)
"""A root at the start of a line, perhaps behind a label."""


def parse(text: str, strict: bool = False) -> Label:
    """Reads the OPT-Code in a text.

    Of several codes behind `OPT=` the last one is read. Thoughts and given material (in tags such
    as <think> or <description>) are skipped. Quotations (in triple quotes or after `>`) are
    searched only if the rest holds no code.

    Args:
        text: A line, a bare expression or a whole reply. To bound the time, a text may have
            200,000 characters, a line 4,096, and brackets may nest 16 deep.
        strict: Accept only one line of the published notations (with optional fields, Locus,
            braces, brackets), each known key at most once and in a published order, distinct roots,
            and no other text. These are exactly the texts that need no repair.

    Raises:
        OptCodeError: The text holds no code, or several different ones without `OPT=`; the message
            points at the column.
    """
    try:
        return _read_line(text, EXACT_MARKER)
    except OptCodeError:
        if strict:
            raise
    return _read_reply(text)


def _read_reply(text: str) -> Label:
    """Reads the code in a whole reply: its own, or else the one that it quotes."""
    if len(text) > LONGEST_TEXT:
        raise OptCodeError(
            f"a text of {len(text):,} characters is too long to search for an OPT-Code: at most "
            f"{LONGEST_TEXT:,} are read"
        )
    plain = text.replace("\r\n", "\n").translate(PLAIN)
    own = drop_asides(_put_object_as_line(plain))
    unquoted = QUOTATION.sub("\n", own)
    code, repairs = _search(unquoted), {Repair.AROUND} if unquoted != plain else set[Repair]()
    if code is None and own != unquoted:
        code, repairs = _search(own), {Repair.SEVERAL}
    if code is None:
        raise OptCodeError(
            "no OPT-Code: expected a line such as 'OPT=Evo/Lrn+Ctl; Rep=param; Obj=fitness; "
            f"Data=sim; Time=gen; Human=low', found '{escape(text.strip())}'"
        )
    return _add_repairs(code, repairs | ({Repair.CHARACTERS} if plain != text else set()))


def bare(text: str) -> Label:
    """Reads an expression without `OPT=`, as in tables of codes; nothing is repaired.

    Raises:
        OptCodeError: The text is no expression of the published notations.
    """
    return _read_line(text, re.compile(""))


def read_canonical(line: str) -> Label:
    """Reads a canonical line, as written by `str` of a code, much faster than `parse`.

    Raises:
        OptCodeError: The text is no such line.
    """
    match = CANONICAL.fullmatch(line)
    start = _read_start(match[1]) if match else None
    pairs = [field.partition("=") for field in match[2].split("; ")[1:]] if match else []
    keys = [key for key, _, _ in pairs]
    if match is None or start is None or start.line != match[1] or keys != sort_keys(keys):
        raise OptCodeError(f"no canonical line: '{escape(line)}'")
    return replace(start, line=line, written=line, fields={key: value for key, _, value in pairs})


@lru_cache(maxsize=1 << 14)
def _read_start(line: str) -> Label:
    return _read_line(line, EXACT_MARKER)


def _read_line(text: str, marker: re.Pattern[str]) -> Label:
    text = text.strip(" \t\n")
    if len(text) > LONGEST_LINE:
        raise OptCodeError(
            f"a line of {len(text):,} characters is no OPT-Code: at most {LONGEST_LINE:,} are read"
        )
    start = marker.match(text)
    if start is None:
        raise OptCodeError(f"column 1: expected 'OPT=', found '{escape(text)}'")
    return Reader(text, start.end()).read()


def _add_repairs(code: Label, repairs: set[Repair]) -> Label:
    return replace(code, repairs=sort_repairs({*code.repairs, *repairs}))


def _put_object_as_line(text: str) -> str:
    """Returns the text with its JSON object, if that holds a code, as a line."""
    start, end = text.find("{"), text.rfind("}") + 1
    try:
        values = _flatten(json.loads(text[start:end], strict=False), {})
    except (ValueError, RecursionError):
        return text
    codes = (values[key] for key in CODE_KEYS if key in values)
    code = next((code for code in codes if isinstance(code, str | list)), None)
    if not code:
        return text
    content = MARKER.split(code)[-1] if isinstance(code, str) else "+".join(map(str, code))
    fields = [
        f"; {name}={values[key]}"
        for key, name in KEYS.items()
        if isinstance(values.get(key), str | int | float)
    ]
    line = " ".join(f"OPT={content}{''.join(fields)}".split())
    return f"{text[:start]}\n{line}\n{text[end:]}"


def _flatten(document: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a JSON object and of the objects in it; the outer ones hold."""
    if isinstance(document, dict):
        for value in reversed(document.values()):
            _flatten(value, values)
        values |= {re.sub("[_ ]", "-", key.casefold()): value for key, value in document.items()}
    return values


def _search(text: str) -> Label | None:
    """Returns the last code at the start of a line, or else in it, or else without `OPT=`."""
    text = FENCE.sub("```", text)
    every = list(MARKER.finditer(text))
    markers = [marker for marker in every if _introduces(text, marker)]
    chosen = [marker for marker in markers if _leads(text, marker)] or markers
    genuine = [marker for marker in chosen if not _is_placeholder(text, marker.end())]
    if not chosen:
        return _search_bare(text)
    if not genuine:
        shown = escape(text[chosen[-1].end() :].strip())
        raise OptCodeError(f"expected roots behind OPT=, found only the placeholder '{shown}'")
    marker = genuine[-1]
    end = next((other.start() for other in every if other.start() > marker.start()), len(text))
    code = _read_behind(text, marker, end)
    return _add_repairs(code, {Repair.SEVERAL}) if len(markers) > 1 else code


def _read_behind(text: str, marker: re.Match[str], end: int) -> Label:
    """Reads the code between a marker and an end; what is dropped around it is repaired."""
    code, rest = _read_part(text[marker.end() : end], ALL_NAMES)
    begin = text.rfind("\n", 0, marker.start()) + 1
    repairs = (
        repairs_by_dropping(text[:begin])
        | repairs_by_dropping(rest)
        | repairs_by_dropping(text[end:])
    )
    if text[begin : marker.start()].strip(" \t"):
        repairs.add(Repair.MARKUP if _leads(text, marker) else Repair.AROUND)
    if not EXACT_MARKER.fullmatch(marker[0]):
        repairs.add(Repair.MARKER)
    return _add_repairs(code, repairs)


def _read_part(text: str, names: dict[str, Root]) -> tuple[Label, str]:
    """Reads the code at the start of a text, and returns it with the text behind it."""
    reader = Reader(f"OPT={text[:LONGEST_LINE]}", 4, names)
    return reader.read(), reader.rest


def _search_bare(text: str) -> Label | None:
    """Returns the line that is an expression, with or without fields, and nothing else.

    Raises:
        OptCodeError: Several such lines differ.
    """
    codes: dict[str, Label] = {}
    lines = [match.start("code") for match in islice(BARE.finditer(text), BARE_TRIES + 1)]
    for start in lines[:BARE_TRIES]:
        try:
            code, rest = _read_part(text[start:], NAMES)
        except OptCodeError:
            continue
        if Repair.AROUND not in code.repairs:
            around = {Repair.MARKER} | repairs_by_dropping(text[:start]) | repairs_by_dropping(rest)
            codes.setdefault(code.composition, _add_repairs(code, around))
    if len(codes) > 1 or len(lines) > BARE_TRIES:
        shown = ", ".join([*codes][:3])
        raise OptCodeError(f"expected one OPT= line, found several codes without it: {shown}")
    return next(iter(codes.values()), None)


def _introduces(text: str, marker: re.Match[str]) -> bool:
    """Returns True unless a marker is a word before a colon that nothing like a code follows."""
    if marker["sign"] == "=":
        return True
    return begins_operand(text, marker.end()) or _is_placeholder(text, marker.end())


def _leads(text: str, marker: re.Match[str]) -> bool:
    """Returns True if nothing but a label precedes a marker on its line."""
    start = text.rfind("\n", max(0, marker.start() - LONGEST_LABEL - 1), marker.start()) + 1
    if marker.start() - start > LONGEST_LABEL:
        return False
    label = LABEL.fullmatch(HTML_TAG.sub("", text[start : marker.start()]))
    return label is not None and (not label["title"] or marker["code"] is not None)


def _is_placeholder(text: str, position: int) -> bool:
    """Returns True if a placeholder such as `<roots>` stands at a position."""
    match = PLACEHOLDER.match(text, position)
    words = re.findall("[A-Za-z]+", match[0]) if match else ()
    return match is not None and not any(word.casefold() in ALL_NAMES for word in words)
