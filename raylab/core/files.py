"""Files and directories on any filesystem that pyarrow opens, local ones included."""

import contextlib
import errno
import io
import os
import platform
import posixpath
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self, cast
from urllib.parse import quote

from pyarrow import ArrowException, fs

from raylab.core.bounded import read_all
from raylab.core.errors import ConfigError, DataError, RunError

OPENED_URIS = 256
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
"""The name of an unfinished file."""
ABANDONED_SECONDS = 3600.0
"""Age from which an unfinished file counts as abandoned."""
REQUEST_BYTES = 1 << 20
"""Smallest read in bytes, because every read of an object in a store is a request."""


@dataclass(frozen=True)
class Place:
    """A file or directory, which need not exist.

    A failure to read or list raises `DataError`, a failure to write or remove `RunError`; both name
    the place and the reason.

    Attributes:
        uri: Its name for users and Ray: an absolute path or a URI.
        filesystem: The filesystem that holds it.
        path: Its path within `filesystem`.
    """

    uri: str
    filesystem: fs.FileSystem
    path: str

    @classmethod
    def at(cls, location: "str | os.PathLike[str] | Place") -> Self:
        """Returns the place of a path or URI; a `ConfigError` if no filesystem opens the URI."""
        if isinstance(location, Place):
            return cls(location.uri, location.filesystem, location.path)
        location = os.fspath(location)
        if "://" not in location:
            path = os.path.abspath(os.path.expanduser(location))
            return cls(path, fs.LocalFileSystem(), path)
        base, mark, query = location.partition("?")
        uri = f"{base.rstrip('/')}{mark}{query}"
        return cls(uri, *_open_uri(uri))

    def __truediv__(self, name: str) -> "Place":
        """Returns the place of a relative name, with `/` between directories."""
        path = posixpath.join(self.path, name)
        if "://" not in self.uri:
            return Place(path, self.filesystem, path)
        base, mark, query = self.uri.partition("?")
        return Place(f"{base}/{quote(name)}{mark}{query}", self.filesystem, path)

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)

    @property
    def stem(self) -> str:
        """The name without its last ending."""
        return PurePosixPath(self.path).stem

    @property
    def parent(self) -> "Place":
        """The directory above."""
        base, mark, query = self.uri.partition("?") if "://" in self.uri else (self.uri, "", "")
        uri = f"{posixpath.dirname(base)}{mark}{query}"
        return Place(uri, self.filesystem, posixpath.dirname(self.path))

    @property
    def is_local(self) -> bool:
        """True on the filesystem of this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def info(self) -> fs.FileInfo:
        """Returns the type, size and time of change; the type of a missing place is `NotFound`."""
        with self._errors_as("read", DataError):
            return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        """Returns True if the file or directory exists."""
        return self.info().type != fs.FileType.NotFound

    def is_directory(self) -> bool:
        """Returns True if this is an existing directory."""
        return self.info().type == fs.FileType.Directory

    def names(self) -> list[str]:
        """Returns the names in the directory, sorted; none if it does not exist."""
        with self._errors_as("listed", DataError):
            selector = fs.FileSelector(self.path, allow_not_found=True)
            return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def files(self, pattern: str) -> list["Place"]:
        """Returns the files below the directory, sorted by path, without hidden ones.

        Args:
            pattern: Glob of the path below the directory, as in `Path.glob`; may begin with `**/`.
        """
        with self._errors_as("listed", DataError):
            if self.is_local:
                # pyarrow would follow links to parent directories without end.
                paths = [str(path) for path in Path(self.path).glob(pattern) if path.is_file()]
            else:
                recursive = pattern.startswith("**/")
                selector = fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
                infos = self.filesystem.get_file_info(selector)
                below = pattern.removeprefix("**/")
                paths = [i.path for i in infos if i.is_file and PurePosixPath(i.path).match(below)]
        names = (posixpath.relpath(path, self.path) for path in sorted(paths))
        return [self / name for name in names if not posixpath.basename(name).startswith(".")]

    def read(self, most: int | None = None) -> bytes:
        """Returns the content of the file; a `DataError` if it has more than `most` bytes."""
        with self._errors_as("read", DataError), self.filesystem.open_input_file(self.path) as file:
            return file.readall() if most is None else read_all(file, str(self), most)

    @contextmanager
    def reader(self) -> Generator[BinaryIO]:
        """Opens the file for reading at any position."""
        with self._errors_as("read", DataError):
            file = cast(Any, self.filesystem.open_input_file(self.path))
        with io.BufferedReader(file, REQUEST_BYTES) as reader:
            yield cast(BinaryIO, reader)

    def write(self, content: bytes) -> None:
        """Writes the file atomically, and creates the directories above it.

        Waits until a local disk has stored it, so that a power cut leaves no torn file.
        """
        with self.writer() as file:
            file.write(content)

    def create(self, content: bytes) -> bool:
        """Writes the file like `write` unless it exists; returns False if it does.

        If several processes create a file at once on a local disk, one of them gets True. Other
        filesystems cannot write conditionally, so they are only checked before.
        """
        if not self.is_local:
            if self.exists():
                return False
            self.write(content)
            return True
        with self._errors_as("written", RunError):
            make_directory(Path(self.path).parent)
            try:
                with _new_file(Path(self.path), _link) as file:
                    file.write(content)
            except FileExistsError:
                return False
        return True

    @contextmanager
    def writer(self) -> Generator[BinaryIO]:
        """Opens a new file that replaces this one, like `write`, when the block succeeds."""
        with self._errors_as("written", RunError):
            if self.is_local:
                with _new_file(Path(self.path), os.replace) as file:
                    yield file
                return
            # Closing a stream to an object store early would leave a truncated object. The file has
            # no name, so a killed process leaves nothing behind.
            with tempfile.TemporaryFile() as file:
                yield cast(BinaryIO, file)
                file.flush()
                self.filesystem.create_dir(posixpath.dirname(self.path), recursive=True)
                opened = f"/dev/fd/{file.fileno()}"
                fs.copy_files(opened, self.path, fs.LocalFileSystem(), self.filesystem)

    def remove(self) -> None:
        """Removes the directory with all its content; a missing one is skipped."""
        with self._errors_as("removed", RunError), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path)

    def remove_abandoned(self) -> None:
        """Removes unfinished files below a local directory that killed processes left."""
        before = time.time() - ABANDONED_SECONDS
        with self._errors_as("removed", RunError):
            for file in Path(self.path).rglob(".*.tmp") if self.is_local else ():
                # A process that lives may end its file at any time.
                with contextlib.suppress(FileNotFoundError):
                    if is_temporary(file.name) and file.stat().st_mtime < before:
                        file.unlink()

    @contextmanager
    def _errors_as(self, verb: str, kind: type[DataError] | type[RunError]) -> Generator[None]:
        """Turns errors of the filesystem into a `RaylabError` that names the place."""
        try:
            yield
        except (OSError, ArrowException) as error:
            where = f" (on {platform.node()})" if self.is_local else ""
            raise kind(f"{self} cannot be {verb}: {_reason(error)}{where}") from error


@lru_cache(OPENED_URIS)
def _open_uri(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{uri} cannot be opened: {_reason(error)}") from error
    return filesystem, path.rstrip("/") or "/"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return ": ".join(filter(None, (os.strerror(error.errno), error.filename)))
    return str(error).partition("\n")[0]


def is_temporary(name: str) -> bool:
    """Returns True for the name of an unfinished file."""
    return TEMPORARY.fullmatch(name) is not None


@contextmanager
def _new_file(final: Path, move: Callable[[Path, Path], None]) -> Generator[BinaryIO]:
    """Opens a temporary file that is moved to its final place at the end."""
    make_directory(final.parent)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            # Before the move: a power cut must not leave the name without the content.
            os.fsync(file.fileno())
        move(temporary, final)
        _sync(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, final: Path) -> None:
    try:
        os.link(temporary, final)
    except FileExistsError:
        raise
    except OSError:
        # Some filesystems have no links. There a crash may leave a torn file.
        with final.open("xb", buffering=0) as file:
            file.write(temporary.read_bytes())
            os.fsync(file.fileno())


def require_writable(path: Path) -> None:
    """Refuses a local directory that takes no new file, by a `RunError`.

    For a missing directory, the nearest one above it decides.
    """
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError(f"{path} cannot be written: {nearest} is no directory, or refuses new files")


def make_directory(path: Path) -> None:
    """Creates a local directory and those above it durably, unless they exist."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for place in missing:
        _sync(place.parent)


def _sync(path: Path) -> None:
    """Waits until the disk has stored a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some filesystems have nothing to store for a directory, and refuse.
        if not (path.is_dir() and error.errno in (errno.EBADF, errno.EINVAL)):
            raise
    finally:
        os.close(descriptor)
