"""The search for the OPT-Code in a reply with prose, fences, quoted prompts, JSON or YAML.

Every step is linear in the length of the text or tried a fixed number of times.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast

import yaml

from raylab.errors import OptCodeError
from raylab.llm.json_replies import json_objects
from raylab.opt.notation.grammar import printable
from raylab.opt.notation.repair import (
    ARROWS,
    HTML_TAG,
    KEY_NAMES,
    KEYS,
    MARK_CLASS,
    MARKS,
    ROOT_NAMES,
    Repair,
    begins_with_root,
    character_repairs,
    is_placeholder,
    plain,
    rewrite,
)

LONGEST_TEXT = 200_000
"""Longest text that is searched, in characters."""
YAML_TRIES = 8
"""Fenced blocks that are read as YAML, counted from the end."""
LONGEST_YAML = 4000
"""Longest block that is read as YAML, in characters."""
DEEPEST_YAML = 16
"""Most brackets in such a block."""
DEEPEST_MAPPING = 4
"""Deepest nesting of mappings that is searched."""
BARE_TRIES = 64
"""Lines without `OPT=` that are read as codes."""
MOST_LINES = 32
"""Lines after the first that one code may take."""
LONGEST_LABEL = 100
SHOWN = 60

CODE_KEYS = (
    "opt-code",
    "optcode",
    "final-opt-code",
    "opt-line",
    "opt",
    "line",
    "code",
    "composition",
    "expression",
    "roots",
    "root",
)
"""Keys under which a mapping may hold a code, the most specific first."""
YAML_KEY = re.compile(
    rf"^[ \t-]*[\"']?(?:{'|'.join(CODE_KEYS).replace('-', '[ _-]')})[\"']?[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)
FIELD_GROUPS = ("fields", "attributes")
THINKING = ("think", "thinking", "reasoning")
"""Tags around the thoughts of a model."""
QUOTING = (
    "description",
    "system_description",
    "system",
    "input",
    "case",
    "document",
    "source",
    "candidate",
    "example",
    "examples",
    "prompt",
)
"""Tags around the material that a model was given."""

MARKER = re.compile(
    rf"(?<![\w-])OPT(?P<code>[ _-]{{0,3}}Code)?[ \t{MARK_CLASS}]{{0,8}}(?P<sign>[=:])",
    re.IGNORECASE,
)
BULLET = re.compile(rf"[\s>•‣{MARK_CLASS}-]*(?:\(?\d{{1,3}}[.):])?[\s>•{MARK_CLASS}{{(\[,-]*")
LABEL = re.compile(rf"[^.!?;:=]{{1,60}}:[ \t{MARK_CLASS}]*")
FENCE = re.compile(r"[ \t]*(?:```|~~~)")
ALPHANUMERIC = re.compile(r"[^\W_]")
FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
CONTINUATION = re.compile(
    rf"[\s>•{MARK_CLASS}-]*(?P<key>[A-Za-z][A-Za-z0-9_-]{{0,31}})[ \t{MARK_CLASS}]*[=:]"
)
WRAPPED = re.compile(rf"(?:[+/&]|{ARROWS})$")
LONGEST_SIGN = 4
"""Characters of the longest sign that `WRAPPED` finds, `--->`."""
LEAD = re.compile(
    rf"[\s>•{MARK_CLASS}-]*(?:(?!(?:{ROOT_NAMES})\b)[^.!?;:=]{{1,60}}:[ \t{MARK_CLASS}]+)?",
    re.IGNORECASE,
)
BARE = re.compile(rf"[\s>•{MARK_CLASS}\[({{-]*(?:{ROOT_NAMES})(?![\w-])(?!\s*:)", re.IGNORECASE)


@dataclass(frozen=True)
class Located:
    """A code found in a text.

    Attributes:
        content: The text after `OPT=`, made plain, on one or several lines.
        marked: True if some form of `OPT=` precedes it.
        repairs: Repairs that were needed to find it.
        position: Position of the code in the text.
    """

    content: str
    marked: bool = True
    repairs: set[Repair] = field(default_factory=set[Repair])
    position: int = 0


def locate(text: str) -> Located:
    """Finds the code in a text: the last one if several have `OPT=`.

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
    own = _without_tagged(text)
    unquoted = _without_quotations(own)
    found = _found(unquoted)
    if found is None and own != unquoted:
        found = _found(own)
        if found is not None:
            found.repairs.add(Repair.QUOTED)
    if found is None:
        begin = printable(text.strip()[:SHOWN])
        raise OptCodeError(
            "no OPT-Code: expected a line such as 'OPT=Evo/Lrn+Ctl; Rep=param; Obj=fitness; "
            f"Data=sim; Time=gen; Human=low', found {begin!r}"
        )
    if unquoted.strip() != text.strip() and Repair.QUOTED not in found.repairs:
        found.repairs.add(Repair.PROSE)
    return found


def _without_tagged(text: str) -> str:
    for tag in QUOTING:
        text = _without(text, f"<{tag}>", f"</{tag}>")
    for tag in THINKING:
        text = _without(text, f"<{tag}>", f"</{tag}>")
        # A template may open the tag for the model; a reply may end before it is closed.
        text = text.rpartition(f"</{tag}>")[2].partition(f"<{tag}>")[0]
    return text


def _without_quotations(text: str) -> str:
    lines = _without(text, '"""', '"""').splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith(">"))


def _without(text: str, opening: str, closing: str) -> str:
    parts: list[str] = []
    position = 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        parts.append(text[position:start])
        position = end + len(closing)
    return "\n".join([*parts, text[position:]])


def _found(text: str) -> Located | None:
    documents, rest = _documents(text)
    page = _Page(rest)
    places: list[Located | _Place] = [*documents, *page.marked()]
    places = sorted(places, key=lambda place: place.position) or [*page.mentioned()]
    genuine = [place for place in places if not is_placeholder(place.content)]
    if not places:
        return page.bare()
    if not genuine:
        shown = printable(places[-1].content.strip()[:SHOWN])
        raise OptCodeError(f"expected roots behind OPT=, found only the placeholder {shown!r}")
    last = genuine[-1]
    if isinstance(last, Located):
        chosen = last
        chosen.repairs.update(_repairs_around(rest))
    else:
        chosen = page.region(last)
    if len(genuine) > 1:
        chosen.repairs.add(Repair.SEVERAL)
    if len(genuine) < len(places):
        chosen.repairs.add(Repair.PLACEHOLDER)
    return chosen


@dataclass(frozen=True)
class _Place:
    """A place in the lines of a page that may hold a code.

    Attributes:
        line: Number of the line with `OPT=`.
        begin: Number of the line with the expression.
        content: The text after `OPT=` on that line.
        position: Position of the line in the text.
        marker: The `OPT=`; None for a bare expression.
        mentioned: True if `OPT=` is within a sentence.
    """

    line: int
    begin: int
    content: str
    position: int
    marker: re.Match[str] | None
    mentioned: bool = False


class _Page:
    """The lines of a text, raw and made plain."""

    def __init__(self, text: str) -> None:
        self._raw = text.splitlines(keepends=True)
        self._lines = [plain(line).strip() for line in self._raw]
        self._starts = list(accumulate(map(len, self._raw), initial=0))
        fences = {n for n, line in enumerate(self._lines) if FENCE.match(line)}
        self._fenced = bool(fences)
        blank = (raw for raw, line in zip(self._raw, self._lines, strict=True) if not line)
        self._blank_repairs = character_repairs("".join(blank))
        self._filled = [
            number
            for number, line in enumerate(self._lines)
            if line and (number not in fences or MARKER.search(line))
        ]

    def marked(self) -> list[_Place]:
        """Returns the codes at the start of a line; only a label may precede them."""
        found: list[_Place] = []
        for number in self._filled:
            line = self._lines[number]
            markers = _leading_markers(line) if "opt" in line.casefold() else []
            if not markers:
                continue
            content = line[markers[-1].end() :]
            if following := MARKER.search(content):
                content = content[: following.start()]
            begin = number
            if not content.strip(f"{MARKS} \t"):
                begin, content = self._next(number)
            sure = markers[-1]["sign"] == "=" and begin == number
            if sure or begins_with_root(content) or is_placeholder(content):
                position = self._starts[number]
                found.append(_Place(number, begin, content, position, markers[-1]))
        return found

    def mentioned(self) -> list[_Place]:
        """Returns the codes with `OPT=` within a sentence."""
        found: list[_Place] = []
        for number in self._filled:
            line = self._lines[number]
            markers = list(MARKER.finditer(line))
            ends = [marker.start() for marker in markers[1:]]
            for marker, end in zip(markers, [*ends, len(line)], strict=False):
                content = line[marker.end() : end]
                if marker["sign"] == "=" or begins_with_root(content):
                    position = self._starts[number]
                    found.append(_Place(number, number, content, position, marker, True))
        return found

    def bare(self) -> Located | None:
        """Returns the line that is an expression, with or without fields, and nothing else.

        Raises:
            OptCodeError: Several such lines differ.
        """
        contents = ((number, LEAD.sub("", self._lines[number], count=1)) for number in self._filled)
        starts = [(number, content) for number, content in contents if BARE.match(content)]
        distinct: dict[str, Located] = {}
        for number, content in starts[:BARE_TRIES]:
            found = self.region(_Place(number, number, content, 0, None))
            if line := _whole(found.content):
                distinct.setdefault(line, found)
        if len(distinct) > 1 or len(starts) > BARE_TRIES:
            shown = ", ".join(line.removeprefix("OPT=") for line in [*distinct][:3])
            raise OptCodeError(f"expected one OPT= line, found several codes without it: {shown}")
        return next(iter(distinct.values()), None)

    def region(self, place: _Place) -> Located:
        """Returns the code at a place, with the following lines that hold its fields."""
        content, end = place.content, place.begin
        used = {place.line, end}
        while (following := self._continuing(end, content)) is not None:
            content += f"\n{self._lines[following]}"
            used.add(following)
            end = following
        repairs = self._lead_repairs(place) | self._blank_repairs
        if place.marker and not self._lines[place.begin].endswith(place.content):
            repairs.add(Repair.SEVERAL)
        repairs.update(*(character_repairs(self._raw[line]) for line in used))
        if self._fenced:
            repairs.add(Repair.MARKUP)
        if place.mentioned or any(line not in used for line in self._filled):
            repairs.add(Repair.PROSE)
        return Located(content, place.marker is not None, repairs, place.position)

    def _lead_repairs(self, place: _Place) -> set[Repair]:
        line, marker = self._lines[place.line], place.marker
        if marker is None:
            dropped = line.removesuffix(place.content)
            label = {Repair.LABEL} if any(map(str.isalnum, dropped)) else set[Repair]()
            marks = {Repair.MARKUP} if dropped and not label else set[Repair]()
            return {Repair.NO_MARKER} | label | marks
        prefix, text, code = line[: marker.start()], marker[0], marker["code"] or ""
        labelled = any(map(str.isalpha, HTML_TAG.sub("", prefix)))
        marks = rf"[{MARK_CLASS}<>•]|(?:^|\s)-|\d[.):]"
        noted = {
            Repair.LABEL: labelled and not place.mentioned,
            Repair.MARKUP: re.search(marks, prefix + text.replace(code, "")) is not None,
            Repair.MARKER: bool(code) or marker["sign"] == ":",
            Repair.UNDERSCORE: "_" in code,
            Repair.CASE: not text.startswith("OPT") or (code or "Code")[-4:] != "Code",
        }
        return {repair for repair, holds in noted.items() if holds}

    def _next(self, number: int) -> tuple[int, str]:
        """Returns the next line with content, unless it begins another code."""
        place = bisect_right(self._filled, number)
        if place == len(self._filled) or _leading_markers(self._lines[self._filled[place]]):
            return number, ""
        return self._filled[place], self._lines[self._filled[place]]

    def _continuing(self, number: int, content: str) -> int | None:
        following = next((n for n in (number + 1, number + 2) if self._has_text(n)), None)
        if following is None or content.count("\n") == MOST_LINES:
            return None
        line = self._lines[following]
        head = CONTINUATION.match(line)
        known = head is not None and head["key"].casefold() in KEYS | KEY_NAMES
        goes_on = content.endswith(";") and head is not None and head[0].endswith("=")
        wrapped = WRAPPED.search(content[-LONGEST_SIGN:]) is not None and begins_with_root(line)
        return following if (known or goes_on or wrapped) and not MARKER.search(line) else None

    def _has_text(self, number: int) -> bool:
        return number < len(self._lines) and bool(self._lines[number])


def _leading_markers(line: str) -> list[re.Match[str]]:
    """Returns the forms of `OPT=` that begin a line, as in `Final OPT-Code: OPT=`."""
    markers: list[re.Match[str]] = []
    position = 0
    while marker := MARKER.search(line, position):
        if not _leads(line[position : marker.start()], marker):
            break
        markers.append(marker)
        position = marker.end()
    return markers


def _leads(prefix: str, marker: re.Match[str]) -> bool:
    if len(prefix) > LONGEST_LABEL:
        return False
    text = HTML_TAG.sub("", prefix)
    label = BULLET.sub("", text, count=1)
    titled = marker["code"] is not None and len(label.split()) <= 4
    return not label or titled or LABEL.fullmatch(label) is not None


def _whole(content: str) -> str | None:
    """Returns the line of a content that is a code as a whole; None if it is not."""
    repairs: set[Repair] = set()
    try:
        line = rewrite(content, repairs, english=False)
    except OptCodeError:
        return None
    return None if Repair.PROSE in repairs else line


def _documents(text: str) -> tuple[list[Located], str]:
    """Returns the codes in JSON objects and YAML blocks, and the text with these blanked out."""
    found: list[Located] = []
    objects = json_objects(text, json.JSONDecoder(strict=False))
    for start, end, document in [*objects, *_yaml_blocks(text)]:
        content = _content_of(document)
        if content is None or not text[start:end].strip():
            continue
        repairs = {Repair.DOCUMENT} | character_repairs(content)
        found.append(Located(plain(content), True, repairs, start))
        text = f"{text[:start]}{' ' * (end - start)}{text[end:]}"
    return found, text


def _repairs_around(rest: str) -> set[Repair]:
    """Returns the repairs that the text around documents needs."""
    lines = rest.splitlines()
    prose = [line for line in lines if not FENCE.match(line)]
    noted = {
        Repair.MARKUP: len(prose) < len(lines),
        Repair.PROSE: any(ALPHANUMERIC.search(line) for line in prose),
    }
    return {repair for repair, holds in noted.items() if holds}


def _yaml_blocks(text: str) -> Iterator[tuple[int, int, Mapping[str, object]]]:
    blocks = [match.span(1) for match in FENCED.finditer(text)][-YAML_TRIES:]
    for start, end in blocks or [(0, len(text))]:
        block = plain(text[start:end])
        if len(block) > LONGEST_YAML or not YAML_KEY.search(block):
            continue
        if block.count("[") + block.count("{") > DEEPEST_YAML:
            continue
        try:
            document: object = yaml.load(block, Loader=_PlainLoader)
        except (yaml.YAMLError, RecursionError, ValueError):
            continue
        if isinstance(document, dict) and _is_structured(cast(Mapping[str, object], document)):
            yield start, end, cast(Mapping[str, object], document)


class _PlainLoader(yaml.BaseLoader):
    """A loader without aliases, by which a few lines name a value a billion times over."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def _is_structured(document: Mapping[str, object]) -> bool:
    """Returns True if a mapping is more than lines of text with colons."""
    keys = {_key(key) for key in document}
    nested = any(isinstance(value, dict | list) for value in document.values())
    return nested or bool(keys & set(CODE_KEYS) and keys & (KEYS.keys() | KEY_NAMES.keys()))


def _content_of(document: Mapping[str, object], depth: int = 0) -> str | None:
    """Returns a mapping as the text after `OPT=`; None if it holds no code."""
    values = {_key(key): value for key, value in document.items()}
    for key in CODE_KEYS:
        value = values.get(key)
        if isinstance(value, str) and value.strip():
            marker = MARKER.search(value)
            return (value[marker.end() :] if marker else value) + _fields_of(values)
        if isinstance(value, list) and value:
            return "+".join(map(str, cast(list[object], value))) + _fields_of(values)
    if depth == DEEPEST_MAPPING:
        return None
    inner = (cast(Mapping[str, object], v) for v in values.values() if isinstance(v, dict))
    contents = (_content_of(mapping, depth + 1) for mapping in inner)
    return next((content for content in contents if content is not None), None)


def _fields_of(values: Mapping[str, object]) -> str:
    groups = [values, *(values[group] for group in FIELD_GROUPS if group in values)]
    pairs = [
        (KEYS.get(_key(key)) or KEY_NAMES.get(_key(key)), value)
        for group in groups
        if isinstance(group, dict)
        for key, value in cast(dict[object, object], group).items()
    ]
    given = [(key, value) for key, value in pairs if key and isinstance(value, str | int | float)]
    return "".join(f"; {key}={value}" for key, value in given if value != "")


def _key(key: object) -> str:
    return str(key).casefold().replace("_", "-").replace(" ", "-")
