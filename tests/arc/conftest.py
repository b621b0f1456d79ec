"""Fixtures of the ARC tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of the maintainers' archives, which are not part of the project."""
    beside_checkout = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("RAYLAB_TEST_DATA", beside_checkout))
    if not folder.is_dir():
        pytest.skip("RAYLAB_TEST_DATA names no directory")
    return folder
