"""Responses from the files of a tree, of any mixture of formats.

A tree is a directory of logs that name their models, at any depth, or one with a directory per
model, as `raylab.quality.trees` has it; or it is a single file. Files may be read by Ray's tasks.
"""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import BinaryIO, cast

from pyarrow import ArrowException

from raylab.bounded import LINE_BYTES, decode
from raylab.config.base import ClusterConfig
from raylab.config.quality import Layout
from raylab.doctor.readers.inspect_logs import read_inspect
from raylab.doctor.readers.long_table import read_long_table
from raylab.doctor.readers.rows import Choice, Row, Rows, Source, as_name, join_rows
from raylab.doctor.readers.sample_lines import (
    EVER_ENDING,
    HARNESS_NAME,
    OBJECT,
    read_ever,
    read_harness,
)
from raylab.doctor.responses import Responses
from raylab.errors import DataError
from raylab.files import REQUEST_BYTES, Place
from raylab.quality.trees import (
    LISTING_THREADS,
    TABLES,
    ScoreTree,
    find_trees,
    lasting_fault,
    list_directory,
    score_files,
)
from raylab.runs.eval_logs import SUFFIXES as LOGS
from raylab.workers import Workers, WorkersHere

SUFFIXES = (*LOGS, *TABLES)
OTHER_FILES = frozenset({"eval-set.json", "listing.json", "logs.json"})
"""Files that Inspect leaves beside logs."""
PARTS_PER_PLACE = 4
NAMED = 3
"""Reasons that an error names."""
BROKEN = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError),
    *(ArrowException, csv.Error),
)
"""Errors that parsers raise for broken content, beside `DataError`."""

STORAGE = re.compile(r"AWS|curl|google|Azure|HDFS|network|connection|timed? ?out", re.IGNORECASE)
"""Words of storage errors; pyarrow raises the same class for broken content."""


def read_responses(
    location: str,
    choice: Choice | None = None,
    *,
    match_text: bool = True,
    strict: bool = False,
    others: Sequence[str] = (),
    layout: Layout = Layout.AUTO,
    workers: Workers | None = None,
) -> Responses:
    """Reads the scores of models on items from logs and tables.

    Args:
        location: Path or URI of a directory or file.
        choice: The scores to read of files that have several; None reads the first.
        match_text: Leave out responses to another text under the same id, as hashes tell it.
        strict: Refuse what would be left out.
        others: Locations of other trees, which may lie in this one and are no part of it.
        layout: Layout of a tree with a directory per model.
        workers: Where files are read; None reads them here.

    Raises:
        DataError: There is no response, the location cannot be read, or something would be left
            out and `strict` is set.
        ConfigError: No filesystem opens a URI.
        OSError: A file cannot be read for the moment.
    """
    listed = Rows()
    sources = list(_find_sources(_find_tree(location, others, layout), listed))
    with_logs = {source.directory for source in sources if source.place.name.endswith(LOGS)}
    if layout is Layout.AUTO and {source.directory for source in sources} - with_logs - {""}:
        # A directory without logs is that of no model.
        sources = [source._replace(directory="", part="") for source in sources]
    workers = workers or WorkersHere(ClusterConfig())
    count = max(1, min(len(sources), workers.places * PARTS_PER_PLACE))
    calls = {number: (sources[number::count], choice or Choice()) for number in range(count)}
    parts = dict(workers.run(read_files, calls))
    joined = join_rows([listed, *(parts[number] for number in sorted(parts))], match_text)
    if strict and joined.left_out:
        reasons = Counter(joined.left_out).most_common(NAMED)
        named = [f"{count} {reason}, as {joined.examples[reason]}" for reason, count in reasons]
        named += ["..."] if len(joined.left_out) > NAMED else []
        raise DataError(f"{location}: {'; '.join(named)}; mend them, or set strict=false")
    return joined


def _find_tree(location: str, others: Sequence[str], layout: Layout) -> ScoreTree:
    root = str(Place.at(location))
    try:
        return find_trees(root, others, layout)[0]
    except DataError:
        if layout is not Layout.AUTO:
            raise
        # Such as a model without generations beside one that has them.
        return find_trees(root, others, Layout.FLAT)[0]


def _find_sources(tree: ScoreTree, rows: Rows) -> Iterator[Source]:
    """Yields the files of a tree that may hold scores; what cannot be listed is left out."""
    root = Place.at(tree.location)
    if root.info().is_file:
        yield Source(root, path=root.stem)
        return
    files = list_directory(root, root.path)[1]
    yield from name_sources(root, [name for name in files if name.endswith(SUFFIXES)])
    if tree.beside:
        where = f"{tree.location}: set layout=flat to read them"
        rows.leave_out("files beside the generations of a model", where, tree.beside)
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        listings = pool.map(partial(score_files, suffixes=SUFFIXES), tree.units)
        for unit, names in zip(tree.units, listings, strict=True):
            top = root / unit.path.removeprefix(f"{root.path}/")
            for name, fault in names.items():
                if fault is not None:
                    rows.leave_out(f"directories ({fault})", f"{top}/{name}")
            files = [name for name, fault in names.items() if fault is None]
            model = "" if tree.layout is Layout.NAMED else unit.model
            yield from name_sources(top, files, model, unit.generation)


def name_sources(
    top: Place, names: Sequence[str], model: str = "", generation: str = ""
) -> Iterator[Source]:
    """Yields the files of a directory, without those that are read with another one."""
    beside = {name.removesuffix(EVER_ENDING) for name in names if name.endswith(EVER_ENDING)}
    times = {
        (os.path.dirname(name), match["time"])
        for name in names
        if (match := HARNESS_NAME.fullmatch(os.path.basename(name)))
    }
    for name in names:
        stem, suffix = os.path.splitext(name)
        run = os.path.dirname(name), stem.rpartition("_")[2]
        is_beside = suffix == ".json" and (stem in beside or run in times)
        if not is_beside and os.path.basename(name) not in OTHER_FILES:
            yield Source(top / name, as_name(model), as_name(generation), as_name(stem))


def read_files(sources: Iterable[Source], choice: Choice) -> Rows:
    """Reads files; one that cannot be used is left out with the reason.

    Raises:
        OSError: A file cannot be read for the moment.
    """
    rows = Rows()
    for source in sources:
        try:
            with closing(_open(source.place)) as file:
                rows.take(source, _read(file, source, choice))
            continue
        except OSError as error:
            is_content = error.errno is None and not STORAGE.search(str(error))
            reason = f"broken: {error}" if is_content else lasting_fault(error)
        except DataError as error:
            reason = str(error)
        except BROKEN as error:
            reason = f"broken: {str(error) or type(error).__name__}"
        kind = re.sub(r"line \d+", "a line", ":".join(reason.split(":")[:2]))
        rows.leave_out(f"files ({kind})", f"{source.place}: {reason}")
    return rows


def _open(place: Place) -> BinaryIO:
    if not place.is_local:
        file = place.filesystem.open_input_file(place.path)
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, file), REQUEST_BYTES))
    if not os.path.isfile(place.path):
        raise DataError("no file, or a link to nothing")
    return open(place.path, "rb")


def _read(file: BinaryIO, source: Source, choice: Choice) -> Iterator[Row]:
    name, read = source.place.name, read_long_table
    if name.endswith(LOGS):
        read = read_inspect
    elif name.endswith((".jsonl", ".ndjson")):
        # The keys of the first line tell the format.
        keys = decode(OBJECT, file.readline(LINE_BYTES), "samples", "line 1")
        file.seek(0)
        read = read_harness if "doc_id" in keys else read_ever if "sample_id" in keys else read
    return read(file, source, choice)
