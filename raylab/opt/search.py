"""The search for the code in a text: a model's reply, or what a person has pasted.

Every step takes time linear in the length of the text, or is tried a fixed number of times.
"""

import json
import re
from typing import Any

from raylab.errors import OptCodeError
from raylab.opt.notation import (
    CODES,
    DEEPEST,
    ENGLISH,
    HTML_TAG,
    KEYS,
    LONGEST_LINE,
    MARK,
    NAMES,
    PLACEHOLDER,
    PLAIN,
    Line,
    Reader,
    Repair,
    begins_operand,
    escaped,
    in_order,
    leftovers,
)

LONGEST_TEXT = 200_000
"""Longest text that is searched, in characters."""
BARE_TRIES = 64
"""Lines without `OPT=` that are read as codes."""
CODE_KEYS = (
    *("opt-code", "optcode", "final-opt-code", "opt-line", "opt", "line", "code"),
    *("composition", "expression", "roots", "root"),
)
"""Keys under which a JSON object may hold a code, the most specific first."""
THINKING = ("think", "thinking", "reasoning")
"""Tags around the thoughts of a model."""
QUOTING = (
    *("description", "system_description", "system", "input", "case", "document", "source"),
    *("candidate", "example", "examples", "prompt"),
)
"""Tags around the material that a model was given."""
ROOT_NAMES = "|".join([*CODES, *NAMES])
MARKER = re.compile(
    rf"(?<![\w-])OPT(?P<code>[ _-]{{0,3}}Code)?[ \t{MARK}]{{0,8}}(?P<sign>[=:])", re.IGNORECASE
)
EXACT_MARKER = re.compile(r"OPT[ \t]*=")
LONGEST_LABEL = 100
BULLET = re.compile(rf"[\s>•‣{MARK}-]*(?:\(?\d{{1,3}}[.):])?[\s>•{MARK}{{(\[,-]*")
LABEL = re.compile(rf"[^.!?;:=]{{1,60}}[:=][ \t{MARK}]*")
FENCE = re.compile(r"^[ \t]*(?:```|~~~)\w*[ \t]*$", re.MULTILINE)
LEAD = re.compile(
    rf"[\s>•{MARK}-]*(?:(?!(?:{ROOT_NAMES})\b)[^.!?;:=]{{1,60}}:[ \t{MARK}]+)?", re.IGNORECASE
)
BARE = re.compile(rf"[\s>•{MARK}\[({{-]*(?:{ROOT_NAMES})(?![\w-])(?!\s*:)", re.IGNORECASE)


def find_line(text: str) -> Line:
    """Finds and reads the code in a text: the last one if several have `OPT=`.

    Thoughts and given material (in tags such as <think> or <description>) are skipped. Quotations
    (in triple quotes or after `>`) are searched only if the rest holds no code.

    Raises:
        OptCodeError: The text holds no code, or several different ones without `OPT=`.
    """
    if len(text) > LONGEST_TEXT:
        raise OptCodeError(
            f"a text of {len(text):,} characters is too long to search for an OPT-Code: at most "
            f"{LONGEST_TEXT:,} are read"
        )
    plain = text.replace("\r\n", "\n").translate(PLAIN)
    own = _without_tagged(_with_object_as_line(plain))
    unquoted = _without_quotations(own)
    line, repairs = _search(unquoted), {Repair.AROUND} if unquoted != plain else set[Repair]()
    if line is None and own != unquoted:
        line, repairs = _search(own), {Repair.SEVERAL}
    if line is None:
        raise OptCodeError(
            "no OPT-Code: expected a line such as 'OPT=Evo/Lrn+Ctl; Rep=param; Obj=fitness; "
            f"Data=sim; Time=gen; Human=low', found '{escaped(text.strip())}'"
        )
    return _with(line, repairs | ({Repair.CHARACTERS} if plain != text else set()))


def _with(line: Line, repairs: set[Repair]) -> Line:
    return Line(line.expression, line.fields, in_order({*line.repairs, *repairs}))


def _with_object_as_line(text: str) -> str:
    """Returns the text with its JSON object, if that holds a code, as a line."""
    start, end = text.find("{"), text.rfind("}") + 1
    try:
        values = _flattened(json.loads(text[start:end], strict=False))
    except (ValueError, RecursionError):
        return text
    codes = (values[key] for key in CODE_KEYS if key in values)
    code = next((code for code in codes if isinstance(code, str | list)), None)
    if not code:
        return text
    content = MARKER.split(code)[-1] if isinstance(code, str) else "+".join(map(str, code))
    fields = [
        f"; {KEYS[key]}={value}"
        for key, value in values.items()
        if key in KEYS and isinstance(value, str | int | float)
    ]
    line = " ".join(f"OPT={content}{''.join(fields)}".split())
    return f"{text[:start]}\n{line}\n{text[end:]}"


def _flattened(document: object) -> dict[str, Any]:
    """Returns the values of a JSON object and of the objects in it, the outer ones first."""
    values: dict[str, Any] = {}
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        level = [item for item in level if isinstance(item, dict)]
        for item in level:
            for key, value in item.items():
                values.setdefault(re.sub("[_ ]", "-", key.casefold()), value)
        level = [value for item in level for value in item.values()]
    return values


def _without_tagged(text: str) -> str:
    for tag in (*QUOTING, *THINKING):
        text = _without(text, f"<{tag}>", f"</{tag}>")
    for tag in THINKING:
        # A template may open the tag for the model; a reply may end before it is closed.
        text = text.rpartition(f"</{tag}>")[2].partition(f"<{tag}>")[0]
    return text


def _without_quotations(text: str) -> str:
    lines = _without(text, '"""', '"""').splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith(">"))


def _without(text: str, opening: str, closing: str) -> str:
    kept, position = "", 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        kept += f"{text[position:start]}\n"
        position = end + len(closing)
    return kept + text[position:]


def _search(text: str) -> Line | None:
    """Returns the last code at the start of a line, or else in it, or else without `OPT=`."""
    text = FENCE.sub("```", text)
    every = list(MARKER.finditer(text))
    markers = [marker for marker in every if _may_begin_code(text, marker)]
    chosen = [marker for marker in markers if _leads(text, marker)] or markers
    genuine = [marker for marker in chosen if not _is_placeholder(text, marker.end())]
    if not chosen:
        return _search_bare(text)
    if not genuine:
        shown = escaped(text[chosen[-1].end() :].strip())
        raise OptCodeError(f"expected roots behind OPT=, found only the placeholder '{shown}'")
    marker = genuine[-1]
    end = next((other.start() for other in every if other.start() > marker.start()), len(text))
    line = _read_from(text, marker.end(), end)
    return _with(line, _repairs_at(text, marker, several=len(markers) > 1))


def _read_from(text: str, start: int, end: int) -> Line:
    """Reads the code that begins at a place of a text and ends before another one."""
    reader = Reader(f"OPT={text[start : min(end, start + LONGEST_LINE)]}", 4)
    line = reader.line()
    return _with(line, leftovers(reader.rest) | leftovers(text[end:]))


def _repairs_at(text: str, marker: re.Match[str], several: bool) -> set[Repair]:
    begin = text.rfind("\n", 0, marker.start()) + 1
    label = text[begin : marker.start()]
    repairs = leftovers(text[:begin])
    if label.strip(" \t"):
        repairs.add(Repair.MARKUP if _leads(text, marker) else Repair.AROUND)
    if not EXACT_MARKER.fullmatch(marker[0]):
        repairs.add(Repair.MARKER)
    return repairs | ({Repair.SEVERAL} if several else set())


def _search_bare(text: str) -> Line | None:
    """Returns the line that is an expression, with or without fields, and nothing else.

    Raises:
        OptCodeError: Several such lines differ.
    """
    distinct: dict[str, Line] = {}
    tries, place = 0, 0
    for raw in text.splitlines(keepends=True):
        lead = LEAD.match(raw)
        start = lead.end() if lead else 0
        if BARE.match(raw, start):
            tries += 1
            line = _bare_line(text, place + start) if tries <= BARE_TRIES else None
            if line is not None:
                distinct.setdefault(str(line.expression), line)
        place += len(raw)
    if len(distinct) > 1 or tries > BARE_TRIES:
        shown = ", ".join([*distinct][:3])
        raise OptCodeError(f"expected one OPT= line, found several codes without it: {shown}")
    return next(iter(distinct.values()), None)


def _bare_line(text: str, start: int) -> Line | None:
    """Returns the code at a place of a text, unless other text stands on its line."""
    reader = Reader(f"OPT={text[start : start + LONGEST_LINE]}", 4, english=False)
    try:
        line = reader.line()
    except OptCodeError:
        return None
    around = leftovers(text[:start]) | leftovers(reader.rest) | {Repair.MARKER}
    return None if Repair.AROUND in line.repairs else _with(line, around)


def _may_begin_code(text: str, marker: re.Match[str]) -> bool:
    end = marker.end()
    return marker["sign"] == "=" or begins_operand(text, end) or _is_placeholder(text, end)


def _leads(text: str, marker: re.Match[str]) -> bool:
    """Returns True if nothing but a label precedes a marker on its line."""
    start = text.rfind("\n", max(0, marker.start() - LONGEST_LABEL - 1), marker.start()) + 1
    if marker.start() - start > LONGEST_LABEL:
        return False
    label = BULLET.sub("", HTML_TAG.sub("", text[start : marker.start()]), count=1)
    titled = marker["code"] is not None and len(label.split()) <= 4
    return not label or titled or LABEL.fullmatch(label) is not None


def _is_placeholder(text: str, position: int) -> bool:
    """Returns True if a placeholder such as `<roots>` stands at a position."""
    match = PLACEHOLDER.match(text, position)
    words = re.findall("[A-Za-z]+", match[0]) if match else ()
    return match is not None and not any(w.casefold() in CODES | NAMES | ENGLISH for w in words)
