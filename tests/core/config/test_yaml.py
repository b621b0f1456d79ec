"""YAML from outside: its values, and what is refused with its place before it costs anything."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from raylab.arc.config.jobs import TrainConfig
from raylab.core.config.compose import load_config
from raylab.core.config.yaml import MAX_BYTES, MAX_DEPTH, read_yaml, read_yaml_file
from raylab.core.errors import ConfigError, DataError
from raylab.label.config.codebook import EXAMPLES, read_codebook
from tests.fuzzing import COUNT, limits, try_altered

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
"""Lines that each stand for nine times what the one before stands for."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[yes, on, 1:30, 0x1f, 1_000]", ["yes", "on", "1:30", "0x1f", "1_000"]),
        ("[2026-01-01, <<, .inf]", ["2026-01-01", "<<", ".inf"]),
        ("[true, False, null, ~, 1, -2, +3]", [True, False, None, None, 1, -2, 3]),
        ("[1e-3, .5, 1., -0.25, 1.0e-05]", [0.001, 0.5, 1.0, -0.25, 0.00001]),
        # The id of a task of ARC.
        ("[00576224, '1', \"true\", '']", ["00576224", "1", "true", ""]),
        ("{yes: 1, 2: 3, true: 4, ~: 5, <<: 6}", {"yes": 1, "2": 3, "true": 4, "~": 5, "<<": 6}),
        ("%YAML 1.1\n---\n[yes, 010]", ["yes", "010"]),
        ("a: |\n  [*b\n", {"a": "[*b\n"}),
        ("# nothing", None),
    ],
)
def test_plain_words_are_text_unless_they_are_values_of_json(text: str, value: Any) -> None:
    assert read_yaml(text).value == value


def test_every_value_has_its_line() -> None:
    assert read_yaml("a: 1\nb:\n- x\n- c: 2\n").lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "c"): 4,
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "line 1, column 5: the anchor or alias 'a0': write the value out"),
        ("a: *a", "line 1, column 4: the anchor or alias 'a'"),
        ("a: !!int '3'", "line 1, column 4: the tag .*int': leave it out"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: 'a' stands twice: remove or rename one"),
        ("[[1]: 2]", "line 1, column 2: a list or mapping is no key"),
        ("labels: " + "[" * 20_000, "line 1, column 109: more than 100 values within each"),
        ("[\n" * 20_000, "line 101, column 1: more than 100 values"),
        ("- " * 20_000, "line 1, column 201: more than 100 values"),
        ("? " * 20_000, "more than 100 values"),
        ("".join(" " * n + "a:\n" for n in range(600)), "line 100, column 100: more than 100"),
        ("a: [", "line 1, column 5: expected the node content"),
        ("--- a\n--- b", "line 2, column 1: .*another document"),
        ("a: \0", "unacceptable character #x0000"),
        ("a: " + "9" * 5000, "line 1, column 4: a number of 5,000 digits: write fewer"),
    ],
)  # fmt: skip
def test_what_is_no_plain_value_is_refused_with_its_place(text: str, problem: str) -> None:
    with limits(), pytest.raises(DataError, match=problem) as caught:
        read_yaml(text)
    assert len(str(caught.value)) < 500


def test_nesting_within_the_limit_is_read() -> None:
    for text in ("[" * MAX_DEPTH + "]" * MAX_DEPTH, "- " * (MAX_DEPTH - 1) + "x"):
        assert json.dumps(read_yaml(text).value).count("[") in (MAX_DEPTH, MAX_DEPTH - 1)


@pytest.mark.parametrize("read", [lambda path: load_config(TrainConfig, (), path), read_codebook])
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "no regular file: write its content into one"),
        (os.mkdir, "no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
        (lambda path: path, "No such file"),
        (lambda path: path.write_bytes(b"x" * (MAX_BYTES + 1)), "more than 262,144 bytes"),
        (lambda path: path.write_bytes(b"name: M\xfcller"), "not UTF-8"),
        (lambda path: path.write_text(BOMB), "line 1, column 5"),
    ],
    ids=["pipe", "directory", "device", "absent", "long", "latin", "bomb"],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, read: Any, make: Any, problem: str
) -> None:
    path = tmp_path / "mine.yaml"
    make(path)
    with limits(), pytest.raises(ConfigError, match=rf"mine\.yaml.*{problem}"):
        read(path)


def test_altered_text_has_a_value_of_json_or_a_typed_error(tmp_path: Path) -> None:
    samples = [Path(EXAMPLES["entities"]).read_bytes(), b"a: {b: [1, 'x', 2.5]}\nc: |\n  d\n"]

    def read(content: bytes) -> None:
        path = tmp_path / "mine.yaml"
        path.write_bytes(content)
        document = read_yaml_file(path)
        json.dumps(document.value)
        assert () in document.lines or document.value is None

    try_altered(samples, read, ConfigError, COUNT * 2)
