"""Rows a second of the archive, with every batch durable when it is acknowledged.

python -m tests.archive.speed sqlite
python -m tests.archive.speed postgresql
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from raylab.annotation.statistics.export import export_run
from raylab.archive.records import HUMAN, CaseRow
from raylab.archive.store import Archive
from tests.annotation.outcomes import CODEBOOK, answer, call, outcome, report
from tests.archive.postgres import postgres_server
from tests.archive.rows import add_calls, call_row, sha256

T = TypeVar("T")
DRAW = random.Random(7)
WORDS = ["".join(DRAW.choices("etaoinshrdlu", k=DRAW.randint(2, 9))) for _ in range(5000)]


def prose(characters: int) -> str:
    return " ".join(DRAW.choices(WORDS, k=characters // 5))[:characters]


def case(status: str) -> CaseRow:
    """A case with a body of about 8 KB."""
    answers = (
        answer(code, [call(text=prose(1400))], rationale=prose(600)) for code in ("Lrn", "Evo")
    )
    judged = [report(calls=(call("evaluate-a", text=prose(900)),)) for _ in range(2)]
    made = outcome(prose(40), *answers, evaluation_a=judged[0], evaluation_b=judged[1])
    text = prose(600)
    return CaseRow(made.case, sha256(text), text, status, made.model_dump(mode="json"))


def rate(name: str, count: int, work: Callable[[], object]) -> None:
    begun = time.perf_counter()
    work()
    speed = count / (time.perf_counter() - begun)
    sys.stdout.write(f"{name:32} {speed:9,.0f} rows/s\n")


def rate_batches(name: str, rows: Sequence[T], size: int, store: Callable[[Sequence[T]], object]):
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    rate(f"{name}, batches of {size}", len(rows), lambda: [store(part) for part in parts])


def main(location: str, directory: Path) -> None:
    with Archive.open(location) as archive:
        run, total = archive.start_run("r", {}, {}), 0
        for batch, count in ((1, 1000), (8, 4000), (64, 16_000)):
            calls = [call_row(prose(40), prose(40), text=prose(1500)) for _ in range(count)]
            rate_batches("calls", calls, batch, partial(add_calls, archive))
        for batch, count in ((1, 1000), (8, 2000), (64, 8000)):
            cases = [case(HUMAN if number % 10 == 0 else "accepted") for number in range(count)]
            rate_batches("cases", cases, batch, run.add_cases)
            total += count
        names = [row.case for row in cases]
        rate("find_heads", len(names), lambda: run.find_heads(names))
        rate("cases", total, lambda: list(run.cases()))
        rate("open cases, of cases", total, lambda: list(run.cases(HUMAN)))
        rate("export", total, lambda: export_run(run, directory / "cases.parquet", CODEBOOK))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        if sys.argv[1:] == ["sqlite"]:
            main(str(Path(name, "archive.db")), Path(name))
        else:
            with postgres_server(durable=True) as server:
                main(server.create_database("speed"), Path(name))
