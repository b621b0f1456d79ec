"""Foreign text made safe to print: what a terminal or a reader would obey becomes visible."""

import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # Control characters: of a terminal, and of ISO 6429.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Direction of writing.
    "\u200b\u2028\u2029\u2060-\u2064\ufeff"  # Of no width, or breaks of lines.
    "\ud800-\udfff"  # Halves of a surrogate pair, which UTF-8 cannot encode.
    "\U000e0000-\U000e007f]"  # Tags, which spell hidden text.
)
_BREAKS = re.compile("[\t\n]")


def printable(text: str, breaks: bool = True) -> str:
    r"""Returns a text with its control, direction, hidden and surrogate characters as escapes.

    An escape is that of a Python string, such as `\x1b`. All other Unicode stays as it is, also
    the joiners of U+200C and U+200D, which Persian, Hindi and emojis are written with.

    Args:
        text: Text from a file, a language model or a user.
        breaks: Keep newlines and tabs; False makes them visible too, for a text of one line.
    """
    text = _OBEYED.sub(_escape, text)
    return text if breaks else _BREAKS.sub(_escape, text)


def _escape(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode("ascii")
