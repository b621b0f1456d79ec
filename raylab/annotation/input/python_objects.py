"""Source code of installed Python objects as cases."""

import importlib
import inspect
import platform
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any

from raylab.annotation.input.cases import Case
from raylab.errors import DataError


def python_cases(names: Iterable[str]) -> Iterator[Case]:
    """Yields the source code of installed Python objects as cases.

    Args:
        names: Dotted names of modules, classes or functions, such as scipy.optimize.linprog.

    Yields:
        One case for each name, which is its id; meta has `package` and `version`.

    Raises:
        DataError: An object does not exist, cannot be imported or has no Python source, or a name
            is given twice.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Python object {name} is given twice: remove one")
        seen.add(name)
        yield Case(name, _source(name), meta=_origin(name))


def is_source(meta: dict[str, Any]) -> bool:
    """Returns True if the meta of a case is that of source code, as from `python_cases`."""
    return meta.keys() >= {"package", "version"}


def _source(name: str) -> str:
    found = _import(name)
    try:
        return textwrap.dedent(inspect.getsource(found))
    except (OSError, TypeError) as error:
        raise DataError(
            f"Python object {name} has no Python source ({error}): name a module, class or "
            "function that is written in Python"
        ) from error


def _import(name: str) -> Any:
    module, rest = _module_of(name)
    found: Any = module
    for attribute in rest:
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise DataError(f"Python object {name} does not exist: {error}") from error
    return found


def _module_of(name: str) -> tuple[ModuleType, list[str]]:
    """Returns the longest module at the start of a dotted name, and the names after it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise DataError(f"Python object {name!a}: should be a dotted name, package.object")
    module: ModuleType | None = None
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if module is not None and error.name == path:
                return module, parts[length - 1 :]
            raise DataError(f"Python object {name}: {error}: install its package") from error
        except Exception as error:
            # Importing runs the package's code, which may raise anything.
            raise DataError(f"Python object {name}: importing {path} fails: {error}") from error
    assert module is not None
    return module, []


def _origin(name: str) -> dict[str, Any]:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return {"package": "python", "version": platform.python_version()}
    for package in _distributions().get(top, ()):
        return {"package": package, "version": metadata.version(package)}
    return {"package": top, "version": None}


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())
