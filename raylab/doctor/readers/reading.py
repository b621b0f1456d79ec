"""Responses from the files of a tree, of any mixture of formats.

A tree is a directory of logs that name their models, at any depth, or one with a directory per
model, as `raylab.quality.trees` has it; or it is a single file. Files may be read by Ray's tasks.
"""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import BinaryIO, cast

import msgspec
from pyarrow import ArrowException, fs

from raylab.config.quality import Layout
from raylab.doctor.readers import every_eval_ever, inspect_logs, lm_eval, long_table
from raylab.doctor.readers.joining import join_rows
from raylab.doctor.readers.json_stream import decode
from raylab.doctor.readers.rows import Choice, Origin, Rows, Scored, Source, as_name
from raylab.doctor.responses import Responses
from raylab.errors import DataError
from raylab.files import REQUEST_BYTES, Place
from raylab.quality.trees import (
    LISTING_THREADS,
    Unit,
    find_trees,
    lasting_fault,
    list_directory,
    score_files,
)
from raylab.runs.eval_logs import SUFFIXES as LOGS
from raylab.workers import Workers

SUFFIXES = (*LOGS, *long_table.SUFFIXES)
OTHER_FILES = frozenset({"eval-set.json", "listing.json", "logs.json"})
"""Files that Inspect leaves beside logs."""
PARTS_PER_PLACE = 4
NAMED = 3
"""Reasons that an error names."""
LINE_BYTES = 1 << 24
BROKEN = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError),
    *(ArrowException, csv.Error),
)
"""Errors that parsers raise for broken content, beside `DataError`."""

STORAGE = re.compile(r"AWS|curl|google|Azure|HDFS|network|connection|timed? ?out", re.IGNORECASE)
"""Words of storage errors; pyarrow raises the same class for broken content."""


def read_responses(
    location: str,
    *,
    metric: str | None = None,
    scorer: str | None = None,
    reducer: str | None = None,
    filter: str | None = None,
    match_text: bool = True,
    strict: bool = False,
    others: Sequence[str] = (),
    layout: Layout = Layout.AUTO,
    workers: Workers | None = None,
) -> Responses:
    """Reads the scores of models on items from logs and tables.

    Args:
        location: Path or URI of a directory or file.
        metric: See `Choice`, as for the next three.
        scorer: Inspect's scorer.
        reducer: Inspect's reducer.
        filter: The filter of lm-evaluation-harness.
        match_text: Leave out responses to another text under the same id, as hashes tell it.
        strict: Refuse what would be left out.
        others: Locations of other trees, which may lie in this one and are no part of it.
        layout: Layout of a tree with a directory per model.
        workers: Those who read; None reads here.

    Raises:
        DataError: There is no response, the location cannot be read, or something would be left
            out and `strict` is set.
        ConfigError: No filesystem opens a URI.
        OSError: A file cannot be read for the moment.
    """
    listed, choice = Rows(), Choice(metric, scorer, reducer, filter)
    sources = list(_find_sources(location, others, layout, listed))
    places = workers.places * PARTS_PER_PLACE if workers else 1
    count = max(1, min(len(sources), places))
    calls = {number: (sources[number::count], choice) for number in range(count)}
    if workers is None:
        parts = {number: read_files(*call) for number, call in calls.items()}
    else:
        parts = dict(workers.run(read_files, calls))
    joined = join_rows([listed, *(parts[number] for number in sorted(parts))], match_text)
    if strict and joined.left_out:
        reasons = sorted(joined.left_out.items(), key=lambda item: -item[1])
        named = [f"{count} {reason}, as {joined.examples[reason]}" for reason, count in reasons]
        rest = ["..."] if len(named) > NAMED else []
        raise DataError(
            f"{location}: {'; '.join([*named[:NAMED], *rest])}; mend them, or set strict=false"
        )
    return joined


def _find_sources(
    location: str, others: Sequence[str], layout: Layout, rows: Rows
) -> Iterator[Source]:
    """Yields the files of a tree that may hold scores; what cannot be listed is left out."""
    root = Place.at(location)
    kind = root.info().type
    if kind == fs.FileType.NotFound:
        raise DataError(f"{location} does not exist: give a directory of logs, or a file")
    if kind != fs.FileType.Directory:
        yield Source(root, path=root.stem)
        return
    directories, files = list_directory(root, root.path)
    yield from _sources(root, "", "", [name for name in files if name.endswith(SUFFIXES)])
    units = _units(str(root), others, layout, rows) if directories else []
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        listings = pool.map(partial(score_files, suffixes=SUFFIXES), units)
        for unit, names in zip(units, listings, strict=True):
            top = root / unit.path.removeprefix(f"{root.path}/")
            for name, fault in names.items():
                if fault is not None:
                    rows.leave_out(f"directories ({fault})", f"{top}/{name}")
            files = [name for name, fault in names.items() if fault is None]
            yield from _sources(top, unit.model, unit.generation, files)


def _units(location: str, others: Sequence[str], layout: Layout, rows: Rows) -> Sequence[Unit]:
    try:
        tree = find_trees(location, others, layout)[0]
    except DataError:
        if layout is not Layout.AUTO:
            raise
        # Such as a model without generations beside one that has them.
        tree = find_trees(location, others, Layout.FLAT)[0]
    if tree.beside:
        where = f"{location}: set layout=flat to read them"
        rows.leave_out("files beside the generations of a model", where, tree.beside)
    return tree.units


def _sources(top: Place, model: str, generation: str, names: Sequence[str]) -> Iterator[Source]:
    """Yields the files of a directory, without those that are read with another one."""
    ending = every_eval_ever.ENDING
    beside = {name.removesuffix(ending) for name in names if name.endswith(ending)}
    times = {
        (os.path.dirname(name), match["time"])
        for name in names
        if (match := lm_eval.SAMPLES.fullmatch(os.path.basename(name)))
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


def _read(file: BinaryIO, source: Source, choice: Choice) -> Iterator[tuple[Origin, Scored]]:
    name, keys = source.place.name, dict[str, msgspec.Raw]()
    if name.endswith(LOGS):
        return inspect_logs.read_inspect(file, source, choice)
    if name.endswith(long_table.LINES):
        # The keys of the first line tell the format.
        line = file.readline(LINE_BYTES)
        keys = decode(msgspec.json.Decoder(dict[str, msgspec.Raw]), line, "line 1")
        file.seek(0)
    if "doc_id" in keys:
        return lm_eval.read_lm_eval(file, source, choice)
    if "sample_id" in keys:
        return every_eval_ever.read_every_eval_ever(file, source, choice)
    return long_table.read_long_table(file, source)
