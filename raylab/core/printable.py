"""Text that is safe to show: without terminal commands, and without secrets in URLs."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

SECRET_NAME = re.compile(
    r"secret|passw|passphrase|token|signature|credential|api-?key|.-key$"
    r"|^(key|pass|pwd|sig|auth|authorization)$"
)
"""Names of parameters whose values are secrets, in lower case with `-` for `_`."""
KEYED_SCHEMES = ("s3", "http", "https", "ftp", "ftps")
"""Schemes whose user, even without a password, is a key."""
PARAMETER = re.compile(r"(?<=[?&;#])(?P<name>[^\s=?&;#]{1,60})=[^\s&;#\"']+")
URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30})://\S+")
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

    An escape is that of a Python string, such as `\x1b`. All other Unicode stays, including the
    joiners U+200C and U+200D of Persian, Hindi and emojis.

    Args:
        text: Text from a file, a language model or a user.
        breaks: Keep newlines and tabs; False makes them visible too, for a text of one line.
    """
    text = _OBEYED.sub(_escape, text)
    return text if breaks else _BREAKS.sub(_escape, text)


def _escape(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode("ascii")


def secret_in(url: str) -> str | None:
    """Returns the place of a secret in a URL, such as `a password`; None if there is none.

    Escapes such as `%77`, even repeated ones, are decoded first, as clients may do.
    """
    while (decoded := unquote(url)) != url:
        url = decoded
    scheme, _, rest = url.partition("://") if "://" in url else ("", "", url)
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    # A password may contain slashes, which end the authority for some readers.
    before = rest.partition("@")[0] if "@" in rest else ""
    if user.partition(":")[2] or before.partition(":")[2]:
        return "a password"
    if at and scheme.lower() in KEYED_SCHEMES:
        return "a key"
    for parameter in re.split("[?&;#]", rest)[1:]:
        name, _, value = parameter.partition("=")
        name = name.strip().lower().replace("_", "-")
        if value and SECRET_NAME.search(name):
            return f"the parameter {name}"
    return None


def redact(text: str) -> str:
    """Returns a text with URLs that contain secrets cut to their scheme.

    Secret parameters of an address without a scheme are blanked.
    """
    text = URL.sub(lambda url: f"{url['scheme']}://***" if secret_in(url[0]) else url[0], text)
    return PARAMETER.sub(
        lambda pair: f"{pair['name']}=***" if secret_in(f"?{pair[0]}") else pair[0], text
    )


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun, such as `1 case` and `1,234 cases`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def join_names(names: Sequence[str], most: int = 4) -> str:
    """Joins names for a sentence; a list longer than `most` ends with the count of the rest."""
    if len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most} more"]
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def duration(seconds: float) -> str:
    """Returns a duration in words: 4.5 s, 45 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.2g} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
