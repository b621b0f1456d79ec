"""re-arc: a directory or zip of `<task id>.json`, each a list of pairs."""

import logging
import zipfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from raylab.arc.data.documents import (
    TASKS_BYTES,
    AnyPair,
    Document,
    MalformedTaskError,
    existing_place,
    file_documents,
    kept_documents,
    nothing_found,
    parse,
    read_all,
    to_pairs,
)
from raylab.arc.data.tasks import MAX_SIDE, Pair, Task
from raylab.bounded import opened_zip, read_member
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

logger = logging.getLogger(__name__)
LONGEST_NAME = 200
"""Most characters of a member's path that an error shows."""


FORM = "a list of pairs; data=arc_json reads {train, test}"
_re_arc_decoder = msgspec.json.Decoder(Annotated[list[AnyPair], msgspec.Meta(min_length=1)])


def load_re_arc(config: DataConfig) -> list[Task]:
    """Returns the re-arc tasks that the configuration keeps, by id."""
    place = existing_place(config)
    with ExitStack() as stack:
        if place.is_directory():
            files = place.files("**/tasks/*.json") or place.files("*.json")
            documents = list(file_documents(files))
        else:
            documents = list(_zip_documents(stack.enter_context(_open_zip(place)), place))
        if not documents:
            raise nothing_found(place, "tasks/<task id>.json and no <task id>.json")
        left_out: Counter[str] = Counter()

        def read(document: Document) -> Task:
            pairs, left_out[document.id] = parse(document, decode, FORM)
            if not pairs:
                fault = f"all pairs have a side over {MAX_SIDE}"
                raise MalformedTaskError([f"{document.file}: task {document.id}: {fault}"])
            return Task(document.id, pairs)

        decode = partial(_decode_re_arc_pairs, limit=config.pairs_per_task)
        tasks = read_all(kept_documents(documents, config, str(place)), read)
    if left_out.total():
        logger.warning(
            "%s: %d pairs with a side over %d are left out (tasks: %s)",
            place,
            left_out.total(),
            MAX_SIDE,
            ", ".join(id_ for id_, count in left_out.items() if count),
        )
    return tasks


@contextmanager
def _open_zip(place: Place) -> Generator[zipfile.ZipFile]:
    where = f"{place} (source re_arc reads a directory or a zip of <task id>.json)"
    try:
        with place.opened() as file, opened_zip(file, where) as archive:
            yield archive
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error}") from error


def _zip_documents(archive: zipfile.ZipFile, place: Place) -> Iterator[Document]:
    names = [(PurePosixPath(info.filename), info) for info in archive.infolist()]
    members = [
        (name, info)
        for name, info in names
        if name.suffix == ".json" and not name.name.startswith(".")
    ]
    in_tasks = [(name, info) for name, info in members if name.parent.name == "tasks"]
    for name, info in in_tasks or members:
        # A name in a zip may have 65,535 characters.
        file = f"{place}:{str(name)[:LONGEST_NAME]}"
        yield Document(name.stem, file, partial(read_member, archive, info, file, TASKS_BYTES))


def _decode_re_arc_pairs(raw: bytes, limit: int | None) -> tuple[tuple[Pair, ...], int]:
    """Returns the first `limit` pairs that are not too large, and the number skipped before."""
    pairs: list[Pair] = []
    too_large = 0
    for pair in to_pairs(_re_arc_decoder.decode(raw), ""):
        if len(pairs) == limit:
            break
        if max(pair.input.shape + pair.output.shape) > MAX_SIDE:
            too_large += 1
        else:
            pairs.append(pair)
    return tuple(pairs), too_large
