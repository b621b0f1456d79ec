"""The command line of every job: flags, `--help`, and errors as exit statuses.

python jobs/<job>.py [--help] [--cfg job] [--config FILE] [key=value ...]
"""

import argparse
import ast
import importlib.util
import json
import logging
import os
import re
import select
import shlex
import sys
import textwrap
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from raylab.core.config.base import JobConfig, command_of, require_trackers
from raylab.core.config.compose import (
    BESIDE_JOBS,
    as_yaml,
    compose_values,
    config_groups,
    load_config,
)
from raylab.core.config.schema import ConfigKey, list_keys
from raylab.core.environment import PASSIVE_WAITING, READ_BY_RAY_ON_IMPORT, set_variables
from raylab.core.errors import ConfigError, RaylabError
from raylab.core.live import bars
from raylab.core.log import PrintableFormatter, details, json_lines, log_line, prints_json

Config = TypeVar("Config", bound=JobConfig)

INTERRUPTED = 130
LOG_JSON = "log=json"
OPTIONAL = re.compile(r"(?P<package>(?!raylab\b)[\w-]+).*; extra == [\"'](?P<extra>[\w-]+)[\"']")
"""A requirement of an extra, which is no other extra."""
JOBS = BESIDE_JOBS / "jobs"
WIDTH, MAX_DEFAULT = 80, 30
"""Columns of `--help`, and of a default among its main keys."""


def run_job(
    kind: type[Config],
    doc: str | None,
    run: Callable[[Config], object],
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Runs a job as the command line asks, and exits the process.

    The exit status is 0 after success, 2 for a configuration that cannot be used, 1 for any other
    `RaylabError` and 130 after an interrupt. These print only their message; any other error is a
    fault of raylab and keeps its traceback. If the reader of the output has gone, as with `head`,
    the status is 1 without a message. `doc` is the job's text for `--help`. Heavy imports belong
    inside `run`.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())
    argv = sys.argv[1:] if argv is None else argv
    with set_variables(**READ_BY_RAY_ON_IMPORT, **PASSIVE_WAITING), ExitStack() as output:
        # An unusable configuration is never read, but its errors must be JSON as well.
        if LOG_JSON in argv:
            output.enter_context(json_lines(kind.job))
        status = _status(kind, doc, run, argv, output)
    sys.exit(status)


def main() -> NoReturn:
    """Runs `raylab <job> ...`, the same as `python jobs/<job>.py ...` in the checkout."""
    job, *argv = sys.argv[1:] or ["--help"]
    if job in ("--help", "-h"):
        lines = ["usage: raylab JOB [--help] [--cfg job] [--config FILE] [key=value ...]", ""]
        for path in sorted(JOBS.glob("*.py")):
            doc = ast.get_docstring(ast.parse(path.read_text())) or ""
            lines.append(f"  {path.stem:<10} {doc.splitlines()[0]}")
        print("\n".join(lines))
        sys.exit(0)
    try:
        kind, script = _load(job)
    except ConfigError as error:
        sys.exit(_log_failure(f"error: {error}", 2))
    run_job(kind, script.__doc__, script.run, argv)


def start(job: str, *overrides: str) -> None:
    """Runs a job in this process, such as that of a notebook, as its command does.

    The overrides are as on the command line, `key=value`.

    Raises:
        ConfigError: There is no such job, or the settings cannot be used.
        RaylabError: The job failed.
    """
    kind, script = _load(job)
    config = load_config(kind, overrides)
    require_trackers(getattr(config, "tracking", ()))
    with _extras_named(kind), set_variables(**READ_BY_RAY_ON_IMPORT, **PASSIVE_WAITING):
        script.run(config)


@contextmanager
def _extras_named(kind: type[JobConfig]) -> Generator[None]:
    """Explains a failed import of a package that an extra of raylab installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0].replace("_", "-")
        try:
            requirements = metadata.requires("raylab") or []
        except metadata.PackageNotFoundError:
            # Only a checkout, which Ray has made the working directory.
            raise error from None
        optional = [match for text in requirements if (match := OPTIONAL.match(text))]
        holders = [match["extra"] for match in optional if match["package"] == package]
        if not holders:
            raise
        # Each product has an extra of its room's name.
        room = kind.__module__.split(".")[1]
        extras = {holders[0]} | {room} & {match["extra"] for match in optional}
        raise ConfigError(
            f"raylab {kind.job} needs {package}: pip install 'raylab[{','.join(sorted(extras))}]'"
        ) from None


def _load(job: str) -> tuple[type[JobConfig], Any]:
    """Returns the configuration class and the module of a job."""
    names = sorted(path.stem for path in JOBS.glob("*.py"))
    if not names:
        raise ConfigError(f"{JOBS} holds no jobs: install raylab, or run it from a whole checkout")
    # By its place: jobs/ is beside the package in a checkout, and within an installed one.
    spec = importlib.util.spec_from_file_location(f"jobs.{job}", JOBS / f"{job}.py")
    if job not in names or spec is None or spec.loader is None:
        raise ConfigError(f"there is no job {job!r:.100}: the jobs are {', '.join(names)}")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (kind,) = (kind for kind in JobConfig.__subclasses__() if kind.job == job)
    return kind, script


def help_text(kind: type[JobConfig], doc: str | None, every: bool = False) -> str:
    """Returns the text of `--help`: the job, its flags, config groups and keys.

    Without `every`, as `--help=all` asks for, only the keys that matter most are listed.
    """
    keys, values = list_keys(kind), compose_values(kind)
    summary, _, rest = (doc or "").strip().partition("\n\n")
    # What is submitted runs in a checkout.
    rest = re.sub(r"(?<!-- )python jobs/(\w+)\.py", lambda m: shlex.join(command_of(m[1])), rest)
    groups = "".join(f"\n  {name}={' | '.join(o)}" for name, o in config_groups(kind).items())
    lines = list[str]()
    if every:
        title, around = "All keys, each with its type,", ("", None)
        for key in keys:
            section = (key.path.rpartition(".")[0], key.variant)
            if key.type and section != around:
                lines.append(f"\n  With {key.variant}:" if key.variant else "")
            around = section if key.type else (key.path, key.variant)
            default = _plain(key.default if key.variant else _value_at(values, key))
            own = f"  {key.path}: {key.type} = {default}" if key.type else f"\n  {key.path}"
            wrapped = textwrap.wrap(key.doc, WIDTH - 6, break_on_hyphens=False)
            lines += [own, *(f"      {line}" for line in wrapped)]
    else:
        title, by_path = "Main keys, each with its", {key.path: key for key in keys}
        main = [by_path[path] for path in (*kind.main, "storage", "name", "resume")]
        defaults = [_plain(_value_at(values, key)) for key in main]
        shown = [text if len(text) <= MAX_DEFAULT else "..." for text in defaults]
        settings = [f"  {key.path}={text}" for key, text in zip(main, shown, strict=True)]
        column = max(map(len, settings)) + 2
        for setting, key in zip(settings, main, strict=True):
            meaning = key.doc.partition(". ")[0].rstrip(".")
            wrapped = textwrap.wrap(meaning, WIDTH - column, break_on_hyphens=False)
            lines.append(f"{setting:<{column}}" + f"\n{' ' * column}".join(wrapped))
    sections = [
        f"usage: {shlex.join(command_of(kind.job))} [--help] [--cfg job] [--config FILE] "
        "[key=value ...]",
        summary,
        "\n".join([f"{title} default and meaning:", *lines]),
        f"Config groups:{groups}" if groups else "",
        f"Flags:\n  --help         print this; --help=all explains all {len(keys)} keys\n"
        "  --cfg job      print the configuration and stop\n"
        "  --config FILE  YAML whose sections replace those of the job's own",
        rest,
    ]
    return "\n\n".join(filter(None, sections))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # The value of an unknown flag may be a secret.
        message = re.sub(r"=\S+", "=...", message)
        raise ConfigError(
            f"{message}\nthe flags are --help, --cfg job and --config FILE; all else is key=value"
        )


def _status(
    kind: type[Config],
    doc: str | None,
    run: Callable[[Config], object],
    argv: Sequence[str],
    output: ExitStack,
) -> int:
    """Runs the job, with JSON lines on `output` if it asks for them; returns its exit status."""
    try:
        if (config := _configure(kind, doc, argv)) is not None:
            if config.log == "json" and not prints_json():
                output.enter_context(json_lines(kind.job))
            if config.log == "debug":
                output.enter_context(details())
            if config.log == "auto":
                output.enter_context(bars())
            require_trackers(getattr(config, "tracking", ()))
            with _extras_named(kind), _exits_fail():
                run(config)
        sys.stdout.flush()
    except RaylabError as error:
        return _log_failure(f"error: {error}", 2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        return _log_failure("interrupted; the same command with resume=true continues", INTERRUPTED)
    except SystemExit as ended:
        # Code of a user's own runs in the job, such as model.target, and must not end it silently.
        return _log_failure(f"error: code that the job runs called exit({ended.code!r})", 1)
    except Exception as error:
        if isinstance(error, BrokenPipeError):
            # Another pipe of the job may be the broken one.
            output_pipe = select.poll()
            output_pipe.register(sys.stdout, 0)
            if output_pipe.poll(0):
                # Otherwise Python's flush at exit would fail again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 1
        if not prints_json():
            raise
        return _log_failure(f"{type(error).__name__}: {error}", 1, exception=traceback.format_exc())
    return 0


@contextmanager
def _exits_fail() -> Generator[None]:
    """Makes a failure of `os._exit(0)`, with which code of a user's own would end the job."""
    end, job = os._exit, os.getpid()

    def fail(status: int) -> NoReturn:
        # Processes that the job forks end so.
        if os.getpid() == job:
            message = f"error: code that the job runs called os._exit({status})"
            status = _log_failure(message, status or 1)
            sys.stdout.flush()
        end(status)

    os._exit = fail
    try:
        yield
    finally:
        os._exit = end


def _log_failure(message: str, status: int, **fields: str) -> int:
    log_line(message, logging.ERROR, status=status, **fields)
    return status


def _configure(kind: type[Config], doc: str | None, argv: Sequence[str]) -> Config | None:
    """Returns the configuration of the command line; None if it was only to be printed."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    # An override that follows is none of its values.
    parser.add_argument("--help", "-h", nargs="?", const="main")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--config")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.help:
        print(help_text(kind, doc, arguments.help == "all"))
        return None
    file = None if arguments.config is None else Path(arguments.config)
    config = load_config(kind, arguments.overrides, file)
    if arguments.cfg:
        print(as_yaml(config), end="")
        return None
    return config


def _value_at(values: dict[str, Any], key: ConfigKey) -> object:
    *parents, name = key.path.split(".")
    for section in parents:
        values = values.get(section) or {}
    return values.get(name, key.default)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
