from pathlib import Path

import pytest

from raylab.arc.scoring.plan import generation_configs
from raylab.config.arc import DataConfig
from raylab.errors import ConfigError

DATA = DataConfig(every=40)


def test_generations_are_named(tmp_path: Path):
    data = DataConfig.model_validate({"source": "re_arc", "path": str(tmp_path)})
    archive = tmp_path / "seed202.zip"
    configs = generation_configs(("published", 3, str(archive)), data)
    assert list(configs) == ["published", "seed-3", "seed202"]
    assert configs["published"] == data
    assert configs["seed-3"].generation == 3
    assert configs["seed202"].path == str(archive)


def test_what_is_called_published_or_an_archive_is_not_redrawn(tmp_path: Path):
    fields = {"source": "re_arc", "path": str(tmp_path), "generation": 5}
    data = DataConfig.model_validate(fields)
    configs = generation_configs(("published", 3, str(tmp_path / "seed202.zip")), data)
    assert [of.generation for of in configs.values()] == [None, 3, None]


def test_generations_that_cannot_be_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="reads no files"):
        generation_configs(("/some/archive.zip",), DATA)
    data = DataConfig.model_validate({"source": "re_arc", "path": str(tmp_path)})
    with pytest.raises(ConfigError, match="both called x"):
        generation_configs(("/a/x.zip", "/b/x.zip"), data)
