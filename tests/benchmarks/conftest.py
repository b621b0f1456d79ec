"""A small benchmark of one model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from raylab.benchmarks.parts import run_benchmark
from raylab.config.jobs import BenchmarkConfig
from raylab.runs.run import Run
from tests.arc.conftest import SMALL_MODELS

Benchmark = Callable[..., Any]


@pytest.fixture
def benchmark(tmp_path: Path) -> Benchmark:
    """Runs a benchmark with one small model as run `b`, and returns its record."""

    def run(record: type[Any], model: str, data: dict[str, Any], **settings: Any) -> Any:
        config = BenchmarkConfig(
            storage=str(tmp_path),
            name="b",
            models=(SMALL_MODELS[model],),
            data=BenchmarkConfig().data.model_copy(update=data),
            threads=torch.get_num_threads(),
            **settings,
        )
        run_benchmark(config)
        assert Run.at(tmp_path / "b").finished
        return Run.at(tmp_path / "b").read_record(record)

    return run
