"""Composition of `configs/`, a file and the command line into a validated configuration.

This is the only module that knows Hydra and OmegaConf.
"""

import json
import logging
import re
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

import raylab
from raylab.core.config.base import JobConfig, command_of
from raylab.core.config.schema import ConfigProblem, explain_errors
from raylab.core.config.yaml import read_yaml_file
from raylab.core.errors import ConfigError

UNUSABLE = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    ValueError,
    TypeError,
    RecursionError,
)
"""Errors of Hydra, OmegaConf and PyYAML for values that they cannot take."""
MAX_REASON = 1000
"""Most characters of a library's error that are shown."""
KEY = re.compile(r"[\w.@/+~-]{1,100}")
LOGGER = logging.getLogger(__name__)
PACKAGE = Path(raylab.__file__).parent
BESIDE_JOBS = PACKAGE if (PACKAGE / "jobs").is_dir() else PACKAGE.parent
"""The folder of `jobs/` and `configs/`: within the installed package, beside it in a checkout."""
CONFIGS = BESIDE_JOBS / "configs"
COMPOSING = threading.Lock()
"""Held while Hydra composes, which it does in a state of the whole process."""
Config = TypeVar("Config", bound=JobConfig)
Groups = dict[str, tuple[str, ...]]
"""The options of config groups."""


def load_config(
    kind: type[Config], overrides: Sequence[str] = (), file: Path | None = None
) -> Config:
    """Composes `configs/<job>.yaml`, a file and Hydra overrides, and validates the result.

    Validation is strict, as of JSON: YAML is typed, so neither `true` nor "3" is a number.

    Args:
        kind: Configuration class of the job.
        overrides: Overrides in Hydra's grammar. A plain `key=value` also sets keys that no YAML
            file names.
        file: YAML whose sections replace those of the job's YAML, such as a sweep's `best.yaml`. A
            group chosen on the command line replaces the file's section.

    Raises:
        ConfigError: The message lists every problem with its key and the expected value.
    """
    groups = config_groups(kind)
    read = [_read_override(groups, number, text) for number, text in enumerate(overrides, 1)]
    usable = [override for override in read if isinstance(override, Override)]
    problems = [problem for problem in read if isinstance(problem, ConfigProblem)]
    try:
        sections = {} if file is None else _read_yaml(file)
        if ignored := sorted(sections.keys() & kind.foreign):
            LOGGER.warning("%s: ignored, they are of other tools: %s", file, ", ".join(ignored))
            sections = {key: value for key, value in sections.items() if key not in ignored}
        # When they are resolved, interpolations would multiply like aliases.
        if "${" in repr(sections):
            raise ConfigError(f"{file}: ${{...}} is not read in a file: write the value itself")
        values = kind.resolve(compose_values(kind, usable, sections))
        # Strict JSON takes a list for a tuple, which strict Python values do not.
        config = kind.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        # Below a group whose option is wrong, each key would be a mistake too.
        unchosen = {problem.keys for problem in problems} & {(group,) for group in groups}
        problems += [p for p in explain_errors(kind, error) if p.keys[:1] not in unchosen]
    except (ConfigError, *UNUSABLE) as error:
        reason = str(error).strip()
        for _, equals, value in (text.partition("=") for text in overrides):
            # The words of a library may repeat an override, and its value may be a secret.
            reason = reason.replace(f"{equals}{value}", "=...") if value else reason
        problems.append(ConfigProblem((), reason[:MAX_REASON].replace("\n", "\n    ")))
    else:
        if not problems:
            return config
    lines = "".join(f"\n  {problem}" for problem in problems)
    raise ConfigError(
        f"the configuration of {kind.job} cannot be used:{lines}\n"
        f"{shlex.join(command_of(kind.job))} --help=all lists every key"
    )


def compose_values(
    kind: type[JobConfig],
    overrides: Sequence[Override] = (),
    sections: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the values of `configs/<job>.yaml` and its groups, before validation.

    `sections` replace those of the YAML, unless their group is chosen.
    """
    groups = config_groups(kind)
    choices = [o for o in overrides if o.is_delete() or _chosen_option(groups, o) is not None]
    chosen = {override.key_or_group for override in choices}
    kept = {key: value for key, value in (sections or {}).items() if key not in chosen}
    try:
        with COMPOSING, initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = compose(kind.job, [str(override.input_line) for override in choices])
        plain = cast(dict[str, Any], OmegaConf.to_container(composed))
        composed = OmegaConf.create(plain | kept)
        for override in overrides:
            if override not in choices:
                key, value = override.key_or_group, override.value()
                # Hydra drops the underscores of a number, which in YAML 1.2 make it text.
                if isinstance(value, int | float) and "_" in override.get_value_string():
                    value = override.get_value_string()
                # The YAML files are sparse; the model decides which keys exist.
                OmegaConf.update(composed, key, value, merge=True, force_add=True)
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except UNUSABLE as error:
        raise ConfigError(str(error)) from error
    return cast(dict[str, Any], values)


def _chosen_option(groups: Groups, override: Override) -> object:
    """Returns the option of a group that an override chooses; None for the value of a key."""
    value = None if override.is_delete() else override.value()
    return value if override.key_or_group in groups and not isinstance(value, dict) else None


def config_groups(kind: type[JobConfig]) -> Groups:
    """Returns the config groups that the job's YAML names, each with its options."""
    path = CONFIGS / f"{kind.job}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing: install raylab, or run the job from a whole checkout (with Ray, "
            "give the checkout as --working-dir)"
        )
    document = _read_yaml(path)
    defaults = cast(list[str | dict[str, Any]], document.get("defaults", []))
    names = [next(iter(entry)).split()[-1] for entry in defaults if isinstance(entry, dict)]
    return {name: tuple(sorted(p.stem for p in (CONFIGS / name).glob("*.yaml"))) for name in names}


def _read_yaml(path: Path) -> dict[str, Any]:
    document = read_yaml_file(path).value
    if not isinstance(document, dict | None):
        raise ConfigError(f"{path} holds no mapping of keys to values")
    return cast("dict[str, Any]", document or {})


def as_yaml(config: JobConfig, exclude: set[str] | None = None) -> str:
    """Returns the configuration without `exclude`, as YAML that loads back to the same."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json", exclude=exclude)))


def _read_override(groups: Groups, number: int, text: str) -> Override | ConfigProblem:
    """Returns an override, or its problem without its value, which may be a secret."""
    key, equals, _ = text.partition("=")
    where = key if equals and KEY.fullmatch(key) else f"override {number}"
    try:
        override = OverridesParser.create().parse_override(text)
    except UNUSABLE as error:
        if not equals:
            return ConfigProblem((where,), "is not key=value")
        column = getattr(getattr(error.__cause__, "offendingToken", None), "column", None)
        place = "" if column is None else f" at character {column + 1}"
        way_out = "a value with special characters is quoted twice: \"key='value'\""
        return ConfigProblem((where,), f"cannot be read{place}; {way_out}")
    key = override.key_or_group
    if not override.is_delete() and override.is_sweep_override():
        problem = "a job takes one value, not a sweep; a list is written key=[a,b]"
        return ConfigProblem((key,), problem)
    option, options = _chosen_option(groups, override), groups.get(key, ())
    if option is not None and option not in options:
        return ConfigProblem((key,), f"no option {option!s:.40}; options: {', '.join(options)}")
    return override
