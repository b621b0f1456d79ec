"""Foreign text made safe to print, and secrets in URLs."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.core.printable import printable, redact, secret_in


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31mred", r"\x9b31mred"),
        ("ze\u200bro\ufeff\u2060\u200e\u061c\u2028", r"ze\u200bro\ufeff\u2060\u200e\u061c\u2028"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Ünïcödé 漢字 עברית ख\u200cग 👩\u200d🔬", "Ünïcödé 漢字 עברית ख\u200cग 👩\u200d🔬"),
    ],
)
def test_what_is_obeyed_becomes_visible_and_other_text_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    assert printable("a\nb\tc\x1b", breaks=False) == r"a\nb\tc\x1b"
    left = printable("".join(map(chr, range(0x110000))))
    assert {c for c in left if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")} == {"\n", "\t"}
    assert left.encode()
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not directions & set(map(unicodedata.bidirectional, left))


WITH_SECRETS = {
    "ftp://u:secret@host/x": "a password",
    "postgresql://user%253Asecret%2540host/db": "a password",
    "postgresql://user@corp:secret@host/db": "a password",
    "s3://key:with/slash@bucket/x": "a password",
    "u:secret@host": "a password",
    "s3://key@bucket/x": "a key",
    "https://host/v1?pass%77ord=x": "the parameter password",
    "https://host/v1#access_token=x": "the parameter access-token",
    "https://host/v1?a=1;sig=x": "the parameter sig",
    "https://host/x?X-Amz-Signature=x": "the parameter x-amz-signature",
    "s3://b/x?endpoint_override=http%3A%2F%2Fkey%3Asecret%40host": "a password",
}
WITHOUT = (
    *("s3://bucket/runs?endpoint_override=127.0.0.1:9000&scheme=http", "gs://anonymous@b/x"),
    *("postgresql://user@[::1]:5432/db?sslkey=/home/me/client.key", "postgresql://user:@host/db"),
    *("postgresql:///db?passfile=~/.pgpass", "abfs://box@account.dfs.core.windows.net/runs"),
    *("file:///srv/a:b/c", "https://host/v1?key=", "s3://b/key=5/x", "", "://", "100%25"),
)


@pytest.mark.parametrize(("url", "place"), WITH_SECRETS.items())
def test_place_of_a_secret(url: str, place: str) -> None:
    assert secret_in(url) == place


@pytest.mark.parametrize("url", WITHOUT)
def test_other_urls_hold_none(url: str) -> None:
    assert secret_in(url) is None
    assert redact(f"see {url} there") == f"see {url} there"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": "ftp://u:secret@h"} and https://h', '{"a": "ftp://*** and https://h'),
        ("h/v1?key=a&scheme=http;secret_key=b#x", "h/v1?key=***&scheme=http;secret_key=***#x"),
    ],
)
def test_secrets_are_cut_from_a_text(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["%25", "://", ":", "@", "a:", "&", "?a=", "s3://a:b@c "])
def test_hostile_url_is_checked_in_linear_time(piece: str) -> None:
    text = "s3://" + piece * (200_000 // len(piece))
    secret_in(text)
    redact(text)


@given(st.text(alphabet="aA:/?#@%253A40&=;[]\\ ") | st.text())
def test_any_text_is_checked(text: str) -> None:
    secret_in(text)
    assert secret_in(f"ftp://u:hunter2@{text}") == "a password"
    assert "hunter2" not in redact(f"ftp://u:hunter2@{text}")
