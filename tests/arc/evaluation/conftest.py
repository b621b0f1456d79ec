"""Fixtures of the tests of evaluations."""

from pathlib import Path

import pytest

from tests.arc.evaluation.models import train_two


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two trained models, `one` and `two`; tests add runs of their own names."""
    return train_two(tmp_path_factory.mktemp("runs"))
