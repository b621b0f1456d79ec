"""Configurations that would take minutes, end in a foreign error, or repeat a secret."""

from pathlib import Path

import pytest

from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.core.config.base import JobConfig
from raylab.core.config.compose import as_yaml, load_config
from raylab.core.config.schema import MAX_PROBLEMS
from raylab.core.errors import ConfigError
from raylab.label.config.jobs import AnnotateConfig
from raylab.together.config import PipelineConfig
from tests.core.config.test_config import refusal
from tests.fuzzing import COUNT, try_altered
from tests.memory import memory

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"data.tasks=[{LONG}]", "data.tasks: cannot be read"),
        ("a" * 5000 + "=1", f"{'a' * 200}...: unknown key"),
        ("data.tasks=" + "[" * 2000, "data.tasks: cannot be read at character 2012"),
        ("a" + ".a" * 3000 + "=1", "recursion"),
    ],
)
def test_a_huge_override_is_refused_in_few_words(override: str, message: str) -> None:
    refused = refusal(TrainConfig, override)
    assert message in refused and len(refused) < 2000


REFERENCES = "".join(
    [f"a0: {'x' * 100}\n", *(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 30))]
)
"""Texts that double thirty times when they are resolved."""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (REFERENCES, "is not read in a file: write the value itself"),
        ("- 1", "no mapping"),
        ("training: {epochs: 3\n", "file.yaml: line 2, column 1: "),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(content)
    with memory():
        refused = refusal(TrainConfig, file=file)
    assert reason in refused and len(refused) < 2000


def test_altered_files_give_configurations_or_typed_errors(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"

    def read(content: bytes) -> object:
        file.write_bytes(content)
        return load_config(TuneConfig, [], file)

    whole = as_yaml(load_config(TuneConfig)).encode()
    try_altered([whole, b"training: {epochs: 3}\nname: 'a'\n"], read, ConfigError, COUNT // 5)


def test_of_many_unknown_keys_few_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("".join(f"s{number}: {{a: 1}}\n" for number in range(2000)))
    refused = refusal(TrainConfig, file=file)
    assert refused.count("unknown key") == MAX_PROBLEMS and "and 1,980 more\n" in refused


SECRETS: dict[type[JobConfig], list[str]] = {
    TrainConfig: [
        "storage='s3://key:slash/hunter2@bucket/runs'",
        "storage='s3://bucket/runs?secret%5Fk%65y=hunter2'",
        "storage='s3://key%3Ahunter2%40bucket/runs'",
        "model.architecture='https://u:hunter2@host'",
        "name=hunter2(b",
        "hunter2",
        "sk hunter2=1",
    ],
    AnnotateConfig: [
        "llm.endpoints.default.base_url='u:hunter2@host'",
        "llm.endpoints.default.base_url='https://host/v1?pass%77ord=hunter2'",
        "llm.endpoints.default.api_key_env=sk-hunter2",
        "llm.endpoints.default.limits='host/v1?secret_key=hunter2'",
        "llm.evaluator.extra={api_key: hunter2}",
        "archive='postgresql://user%3Ahunter2@host/db'",
    ],
    PipelineConfig: ["take=['s3://key:hunter2@bucket']"],
}


@pytest.mark.parametrize(
    ("kind", "override"),
    [(kind, override) for kind, overrides in SECRETS.items() for override in overrides],
)
def test_no_secret_is_repeated(kind: type[JobConfig], override: str) -> None:
    assert "hunter2" not in refusal(kind, override)
