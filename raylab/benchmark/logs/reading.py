"""Responses from the files of a tree, in any mixture of formats."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import BinaryIO

from pyarrow import ArrowException

from raylab.benchmark.logs.inspect_logs import read_inspect
from raylab.benchmark.logs.long_table import read_long_table
from raylab.benchmark.logs.rows import Choice, Row, Rows, join_rows
from raylab.benchmark.logs.sample_lines import OBJECT, read_ever, read_harness
from raylab.benchmark.logs.trees import (
    DirectoryError,
    ScoreTree,
    Source,
    lasting_fault,
    open_source,
)
from raylab.benchmark.responses import Responses
from raylab.core.bounded import LINE_BYTES, decode
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import DataError
from raylab.core.files import REQUEST_BYTES
from raylab.core.workers import Workers, WorkersHere

PARTS_PER_PLACE = 4
NAMED = 3
"""Reasons that an error names."""
BROKEN = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError),
    *(ArrowException, csv.Error),
)
"""Errors that parsers raise for broken content, apart from `DataError`."""

STORAGE = re.compile(r"AWS|curl|google|Azure|HDFS|network|connection|timed? ?out", re.IGNORECASE)
"""Words of storage errors; pyarrow raises the same class for broken content."""


def read_responses(
    tree: ScoreTree,
    choice: Choice | None = None,
    *,
    strict: bool = False,
    workers: Workers | None = None,
) -> Responses:
    """Reads the scores of models on items from the logs and tables of a tree.

    Args:
        tree: The tree.
        choice: The scores to read from files that have several; None reads the first.
        strict: Refuse what would be left out.
        workers: Where files are read; None reads them in this process.

    Raises:
        DataError: There is no response, a directory is missing where files are read, or something
            would be left out and `strict` is set.
        OSError: A file cannot be read for the moment.
    """
    listed = Rows()
    for source, fault in tree.faults:
        listed.leave_out(f"directories ({fault})", str(source.place))
    workers = workers or WorkersHere(ClusterConfig())
    count = max(1, min(len(tree.sources), workers.places * PARTS_PER_PLACE))
    calls = {number: (tree.sources[number::count], choice or Choice()) for number in range(count)}
    parts = dict(workers.run(read_files, calls))
    joined = join_rows([listed, *(parts[number] for number in sorted(parts))])
    if strict and joined.left_out:
        reasons = Counter(joined.left_out).most_common(NAMED)
        named = [f"{count} {reason}, as {joined.examples[reason]}" for reason, count in reasons]
        raise DataError(f"{tree.location}: {'; '.join(named)}; fix them, or set strict=false")
    return joined


def read_files(sources: Iterable[Source], choice: Choice) -> Rows:
    """Reads files, and leaves out unusable ones with the reason.

    Raises:
        DataError: The directory of a file is missing on the machine where this runs.
        OSError: A file cannot be read for the moment.
    """
    rows = Rows()
    for source in sources:
        try:
            with closing(open_source(source, REQUEST_BYTES)) as file:
                rows.take(source, _read(file, source, choice))
            continue
        except DirectoryError:
            raise
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


def _read(file: BinaryIO, source: Source, choice: Choice) -> Iterator[Row]:
    read = read_inspect if source.is_log else read_long_table
    if source.name.endswith(".jsonl"):
        # The keys of the first line show the format.
        keys = decode(OBJECT, file.readline(LINE_BYTES), "samples", "line 1")
        file.seek(0)
        read = read_harness if "doc_id" in keys else read_ever if "sample_id" in keys else read
    return read(file, source, choice)
