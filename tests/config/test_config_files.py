"""Files given with --config, which may be anything."""

from pathlib import Path

import pytest

from raylab.config.compose import as_yaml, load_config
from raylab.config.jobs import TrainConfig, TuneConfig
from raylab.errors import ConfigError
from tests.config.test_config import needed
from tests.fuzzing import COUNT, try_altered
from tests.memory import memory

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
"""380 bytes that stand for 3.5 billion nodes."""
REFERENCES = "".join(
    [f"a0: {'x' * 100}\n", *(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 30))]
)
"""Texts that double thirty times when they are resolved."""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (ALIASES, "more than 8,192 YAML nodes"),
        (REFERENCES, "is not read in a file: write the value itself"),
        ("a: &a [*a]", "more than 8,192 YAML nodes"),
        ("[" * 100_000, "more than 8,192 YAML nodes"),
        (f"a: {'x' * 300_000}", "more than 262,144 bytes"),
        ("name: M\xfcller", "cannot be read as YAML"),
        ("seed: !!int x", "cannot be read as YAML"),
        ("seed: !!timestamp 2026-99-99", "cannot be read as YAML"),
        ("name: !!binary eA==", "the configuration of train cannot be used"),
        ("1: 2", "the configuration of train cannot be used"),
        ("null: 2", "cannot be read as YAML"),
        ("? [a]\n: 1", "cannot be read as YAML"),
        ("'a.b[0': 1", "the configuration of train cannot be used"),
        ("'': 1", "the configuration of train cannot be used"),
        ("seed: 1\n---\nseed: 2", "cannot be read as YAML"),
        ("- 1", "no mapping"),
        ("seed: .nan", "the configuration of train cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(content, encoding="latin-1")
    with memory(), pytest.raises(ConfigError, match=reason):
        load_config(TrainConfig, [], file)


def test_an_endless_file_ends() -> None:
    with memory(), pytest.raises(ConfigError, match="more than 262,144 bytes"):
        load_config(TrainConfig, [], Path("/dev/zero"))


def test_altered_files_give_configurations_or_typed_errors(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"

    def read(content: bytes) -> object:
        file.write_bytes(content)
        return load_config(TuneConfig, [], file)

    whole = as_yaml(load_config(TuneConfig, needed(TuneConfig))).encode()
    try_altered([whole, b"training: {epochs: 3}\nname: 'a'\n"], read, ConfigError, COUNT // 5)
