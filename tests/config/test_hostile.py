"""Configurations that would take minutes, end in a foreign error, or repeat a secret."""

import difflib
from pathlib import Path
from typing import Any

import pytest

from raylab.config import schema
from raylab.config.compose import OVERRIDE_CHARACTERS, load_config
from raylab.config.jobs import TrainConfig
from raylab.config.schema import MOST_PROBLEMS
from raylab.errors import ConfigError

LONG = "9" * 5000


def refusal(*overrides: str, file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(TrainConfig, overrides, file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"training.epochs={LONG}", "training.epochs: cannot be read"),
        (f"data.tasks=[{LONG}]", "data.tasks: cannot be read"),
        ("a" * 5000 + "=1", f"{'a' * 200}...: unknown key"),
        (f"model={'a' * 5000}", f"model: no option {'a' * 40};"),
        ("name=" + "a" * OVERRIDE_CHARACTERS, "name: has more than 16,384 characters"),
        ("data.tasks=" + "[" * 2000, "data.tasks: cannot be read at character 2012"),
        ("a" + ".a" * 3000 + "=1", "recursion"),
    ],
)
def test_a_huge_override_is_refused_in_few_words(override: str, message: str) -> None:
    refused = refusal(override)
    assert message in refused
    assert len(refused) < 2000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"training: {{epochs: {LONG}}}", "cannot be read as YAML: Exceeds the limit"),
        (f"training: {{epochs: 0x{'f' * 5000}}}", "Exceeds the limit"),
        ("x: &x {a: 1, b: 2}\ny:\n" + "  <<: *x\n" * 8000, "more than 8,192 YAML nodes"),
    ],
)
def test_a_huge_file_is_refused_in_few_words(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    refused = refusal(file=file)
    assert message in refused
    assert len(refused) < 2000


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"s{number}: {{a: 1}}\n" for number in range(2000)),
        f"x: &x {{{', '.join(f'k{number}: 1' for number in range(2000))}}}\ntraining: {{<<: *x}}\n",
    ],
)
def test_of_many_unknown_keys_few_are_compared_and_listed(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, compared = tmp_path / "config.yaml", list[str]()
    file.write_text(content)

    def count(word: str, *rest: Any) -> list[str]:
        compared.append(word)
        return close(word, *rest)

    close = difflib.get_close_matches
    monkeypatch.setattr(schema.difflib, "get_close_matches", count)
    refused = refusal(file=file)
    assert refused.count("unknown key") == MOST_PROBLEMS
    assert set(compared) <= {f"{letter}{number}" for letter in "sk" for number in range(20)} | {"x"}
    assert "more\n" in refused


@pytest.mark.parametrize(
    "override",
    [
        *("llm.x=hunter2(b", "llm.x=[hunter2", "hunter2", "sk hunter2=1", "llm.x='hunter2"),
        "~model=hunter2",
    ],
)
def test_an_override_that_cannot_be_used_does_not_repeat_its_value(
    override: str,
) -> None:
    assert "hunter2" not in refusal(override)
