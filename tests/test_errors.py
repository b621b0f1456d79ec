import pickle
from collections.abc import Iterator

import pytest

from raylab import errors
from raylab.annotation.reviews import UndecidedError
from raylab.errors import RaylabError

MESSAGE = "the file x is broken: mend it"


def kinds(base: type[RaylabError]) -> Iterator[type[RaylabError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def test_every_error_is_listed() -> None:
    assert {UndecidedError, errors.NonFiniteLossError} <= {*kinds(RaylabError)}


@pytest.mark.parametrize("kind", list(kinds(RaylabError)), ids=lambda kind: kind.__name__)
def test_an_error_crosses_processes_as_itself(kind: type[RaylabError]) -> None:
    error = kind({"code": MESSAGE}) if kind is UndecidedError else kind(MESSAGE)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == MESSAGE
