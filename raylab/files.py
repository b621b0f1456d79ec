"""Files and directories on any filesystem that pyarrow opens, local ones among them."""

import contextlib
import io
import os
import platform
import posixpath
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self, cast
from urllib.parse import quote

from pyarrow import ArrowException, fs

from raylab.errors import ConfigError, DataError, RunError

OPENED_URIS = 256
REQUEST_BYTES = 1 << 20
"""Read at once of a file that is read in parts, for every read of an object is a request."""


@dataclass(frozen=True)
class Place:
    """A file or directory, which need not exist.

    Attributes:
        uri: As users and Ray name it: an absolute path or a URI.
        filesystem: Where it lies.
        path: It within `filesystem`.
    """

    uri: str
    filesystem: fs.FileSystem
    path: str

    @classmethod
    def at(cls, location: "str | os.PathLike[str] | Place") -> Self:
        """The place at a path or URI, or at another place.

        Raises:
            ConfigError: No filesystem opens the URI.
        """
        if isinstance(location, Place):
            return cls(location.uri, location.filesystem, location.path)
        location = os.fspath(location)
        if "://" not in location:
            path = os.path.abspath(os.path.expanduser(location))
            return cls(path, fs.LocalFileSystem(), path)
        base, mark, query = location.partition("?")
        uri = f"{base.rstrip('/')}{mark}{query}"
        return cls(uri, *_opened(uri))

    def __truediv__(self, name: str) -> "Place":
        """The place of a relative name, with `/` between directories."""
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
        """The directory that it lies in."""
        base, mark, query = self.uri.partition("?") if "://" in self.uri else (self.uri, "", "")
        uri = f"{posixpath.dirname(base)}{mark}{query}"
        return Place(uri, self.filesystem, posixpath.dirname(self.path))

    @property
    def is_local(self) -> bool:
        """Whether it lies on the filesystem of this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def info(self) -> fs.FileInfo:
        """What is there, if anything: its type, size and time of change.

        Raises:
            DataError: That cannot be told.
        """
        with self._told("read", DataError):
            return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        """Whether there is such a file or directory.

        Raises:
            DataError: That cannot be told.
        """
        return self.info().type != fs.FileType.NotFound

    def is_directory(self) -> bool:
        """Whether there is such a directory.

        Raises:
            DataError: That cannot be told.
        """
        return self.info().type == fs.FileType.Directory

    def names(self) -> list[str]:
        """The names in the directory, sorted; none where there is no directory.

        Raises:
            DataError: It cannot be listed.
        """
        with self._told("listed", DataError):
            selector = fs.FileSelector(self.path, allow_not_found=True)
            return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def files(self, pattern: str) -> list["Place"]:
        """The files below the directory, by path, less those whose name starts with a dot.

        Args:
            pattern: Of their path below the directory, as `Path.glob` takes it; `**/` may lead.

        Raises:
            DataError: It cannot be listed.
        """
        with self._told("listed", DataError):
            paths = self._local_paths(pattern) if self.is_local else self._remote_paths(pattern)
        names = (posixpath.relpath(path, self.path) for path in sorted(paths))
        return [self / name for name in names if not posixpath.basename(name).startswith(".")]

    def read(self) -> bytes:
        """The content of the file.

        Raises:
            DataError: It is missing or cannot be read.
        """
        with self._told("read", DataError), self.filesystem.open_input_file(self.path) as file:
            return file.readall()

    @contextmanager
    def opened(self) -> Generator[BinaryIO]:
        """The file, to be read in parts and at any position.

        Raises:
            DataError: It is missing or cannot be read.
        """
        with self._told("read", DataError):
            file = cast(Any, self.filesystem.open_input_file(self.path))
        with io.BufferedReader(file, REQUEST_BYTES) as reader:
            yield cast(BinaryIO, reader)

    def write(self, content: bytes, durable: bool = True) -> None:
        """Writes the file whole or not at all, with the directories that it lies in.

        Args:
            content: All of it.
            durable: Wait until a local disk has it, so that no power cut leaves it torn.

        Raises:
            RunError: It cannot be written.
        """
        with self.replaced(durable) as file:
            file.write(content)

    @contextmanager
    def replaced(self, durable: bool = True) -> Generator[BinaryIO]:
        """A file to write that takes this place when the block ends well, and else leaves no trace.

        Args:
            durable: As in `write`.

        Raises:
            RunError: It cannot be written.
        """
        write = _renamed(Path(self.path), durable) if self.is_local else self._uploaded()
        with self._told("written", RunError), write as file:
            yield file

    @contextmanager
    def _uploaded(self) -> Generator[BinaryIO]:
        # A stream to an object store that is closed early leaves what was written as the object.
        with tempfile.NamedTemporaryFile() as file:
            yield cast(BinaryIO, file)
            file.flush()
            self.filesystem.create_dir(posixpath.dirname(self.path), recursive=True)
            fs.copy_files(file.name, self.path, fs.LocalFileSystem(), self.filesystem)

    def _local_paths(self, pattern: str) -> list[str]:
        # pyarrow follows links to directories above them without end.
        return [str(path) for path in Path(self.path).glob(pattern) if path.is_file()]

    def _remote_paths(self, pattern: str) -> list[str]:
        selector = fs.FileSelector(
            self.path, allow_not_found=True, recursive=pattern.startswith("**/")
        )
        found = [info.path for info in self.filesystem.get_file_info(selector) if info.is_file]
        return [path for path in found if PurePosixPath(path).match(pattern.removeprefix("**/"))]

    @contextmanager
    def _told(self, verb: str, kind: type[DataError] | type[RunError]) -> Generator[None]:
        """Turns errors of the filesystem into one that names the place."""
        try:
            yield
        except (OSError, ArrowException) as error:
            where = f" (on {platform.node()})" if self.is_local else ""
            raise kind(f"{self} cannot be {verb}: {_reason(error)}{where}") from error


def places_of(text: str, storage: str) -> list[Place]:
    """Where what a user names may lie: below the storage, or else at the path itself.

    A URI and an absolute path name one place alone.

    Raises:
        ConfigError: No filesystem opens the URI, or the storage.
    """
    given = Place.at(text)
    if "://" in text or os.path.isabs(os.path.expanduser(text)):
        return [given]
    return [Place.at(storage) / text.rstrip("/"), given]


@lru_cache(OPENED_URIS)
def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{uri} cannot be opened: {_reason(error)}") from error
    return filesystem, path.rstrip("/") or "/"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return ": ".join(filter(None, (os.strerror(error.errno), error.filename)))
    return str(error).partition("\n")[0]


@contextmanager
def _renamed(final: Path, durable: bool) -> Generator[BinaryIO]:
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
