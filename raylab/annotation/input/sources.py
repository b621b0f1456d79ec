"""The cases that a configuration names, streamed."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from raylab.annotation.input.cases import Case, CaseIds, packaged_cases, read_cases
from raylab.annotation.input.python_objects import python_cases
from raylab.codebook import Codebook
from raylab.config.annotation import CasesConfig
from raylab.config.base import AS_PUBLISHED
from raylab.errors import ConfigError
from raylab.files import Place


def select_cases(
    config: CasesConfig, generations: Sequence[int | str], codebook: Codebook
) -> Iterator[tuple[str, Case]]:
    """Yields every case of a run with its generation.

    Args:
        config: Source of the cases of generation `published`, and the selection from them.
        generations: Generations of the score tree. Files add cases, whose ids are prefixed with
            the generation's name; seeds draw from the cases of `published`.
        codebook: Codebook that has the packaged cases and reads gold.

    Raises:
        ConfigError: Two generations would have the same name.
        DataError: A source cannot be used.
    """
    taken = CaseIds()
    chosen = islice(_source(config, codebook), 0, None, config.every)
    for case in islice(chosen, config.take):
        taken.add(case.id)
        yield AS_PUBLISHED, case
    for name, location in generation_files(generations).items():
        for case in read_cases(location, codebook, name, taken):
            yield name, case


def generation_files(generations: Sequence[int | str]) -> dict[str, str]:
    """Returns the case files among the generations, by file name without extensions.

    Raises:
        ConfigError: Two generations have the same name.
    """
    files: dict[str, str] = {}
    for location in generations:
        if isinstance(location, int) or location == AS_PUBLISHED:
            continue
        name = Place.at(location).name.partition(".")[0]
        if name in files or name in map(str, generations):
            raise ConfigError(f"generations: two are called {name}; rename the file {location}")
        files[name] = location
    return files


def input_files(config: CasesConfig, generations: Sequence[int | str]) -> list[Place]:
    """Returns the files that cases are read from, those of generations last.

    Raises:
        ConfigError: Two generations have the same name.
    """
    own = [] if config.path is None else [config.path]
    return [Place.at(location) for location in (*own, *generation_files(generations).values())]


def _source(config: CasesConfig, codebook: Codebook) -> Iterator[Case]:
    if config.path is not None:
        return read_cases(config.path, codebook)
    if config.python:
        return python_cases(config.python)
    sets = (config.packaged or "gold").split("+")
    return chain.from_iterable(packaged_cases(name, codebook) for name in sets)
