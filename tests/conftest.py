"""An object storage for all tests, started when the first of them asks."""

from collections.abc import Iterator

import pytest

from tests.object_storage import ObjectStorage, s3_server


@pytest.fixture(scope="session")
def object_storage() -> Iterator[ObjectStorage]:
    with s3_server() as storage:
        yield storage


@pytest.fixture
def s3(object_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """The object storage, in the environment of one of its users."""
    for name, value in object_storage.environment.items():
        monkeypatch.setenv(name, value)
    return object_storage
