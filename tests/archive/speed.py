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
from typing import Any, TypeVar

from raylab.annotation.decisions import make_decision
from raylab.annotation.outcome import SIDES, Status
from raylab.annotation.statistics.export import export_run
from raylab.archive.records import HUMAN, CallRow, CaseRow, DecisionRow
from raylab.archive.store import Archive
from raylab.opt.code import bare
from tests.annotation.outcomes import CODEBOOK, answer, call, outcome, report
from tests.archive.postgres import postgres_server
from tests.archive.rows import NOON, add_calls, call_row, sha256

T = TypeVar("T")
DRAW = random.Random(7)
WORDS = ["".join(DRAW.choices("etaoinshrdlu", k=DRAW.randint(2, 9))) for _ in range(5000)]


def prose(characters: int) -> str:
    return " ".join(DRAW.choices(WORDS, k=characters // 5))[:characters]


def calls(count: int) -> list[CallRow]:
    """Of about 2 KB."""
    return [call_row(prose(40), prose(40), text=prose(1500)) for _ in range(count)]


def cases(count: int) -> list[CaseRow]:
    """With bodies of about 8 KB, a tenth of them for a person."""
    return [one(Status.ACCEPTED if number % 10 else Status.HUMAN) for number in range(count)]


def one(status: Status) -> CaseRow:
    first, second = (
        answer(code, [call(text=prose(1400))], rationale=prose(600)) for code in ("Lrn", "Evo")
    )
    judged = [report(calls=(call("evaluate-a", text=prose(900)),)) for _ in SIDES]
    made = outcome(
        prose(40),
        first,
        second,
        status=status,
        evaluation_a=judged[0],
        evaluation_b=judged[1],
    )
    description = prose(600)
    body = made.model_dump(mode="json")
    return CaseRow(made.case, sha256(description), description, status, body)


def decision(case: str) -> DecisionRow:
    made = make_decision(case, "own", bare("Evo"), "since", "ada", NOON)
    return DecisionRow(case, "decide", "ada", "accepted", made.model_dump(mode="json"))


def write_rate(name: str, add: Callable[[Sequence[T]], object], rows: list[T], batch: int) -> None:
    begun = time.perf_counter()
    for start in range(0, len(rows), batch):
        add(rows[start : start + batch])
    say(f"{name}, batches of {batch}", len(rows), begun)


def read_rate(name: str, count: int, read: Callable[[], Any]) -> None:
    begun = time.perf_counter()
    read()
    say(name, count, begun)


def say(name: str, count: int, begun: float) -> None:
    rate = count / (time.perf_counter() - begun)
    sys.stdout.write(f"{name:32} {rate:9,.0f} rows/s\n")


def main(location: str, directory: Path) -> None:
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        for batch, count in ((1, 1000), (8, 4000), (64, 16_000)):
            write_rate("add_calls", partial(add_calls, archive), calls(count), batch)
        for batch, count in ((1, 1000), (8, 2000), (64, 8000)):
            rows = cases(count)
            write_rate("add_cases", lambda some: archive.run("r").add_cases(some), rows, batch)
        names = [case.case for case in rows]
        read_rate("find_heads", 8000, lambda: archive.run("r").find_heads(names))
        description_hashes = [row.description_hash for row in calls(1)] + [
            sha256(prose(9)) for _ in range(7999)
        ]
        read_rate("calls_of, subjects", 8000, lambda: archive.calls_of(description_hashes))
        read_rate("spent, of calls", 21_000, lambda: archive.run("r").cost())
        read_rate("cases", 11_000, lambda: sum(1 for _ in archive.run("r").cases()))
        read_rate(
            "open cases, of cases", 11_000, lambda: sum(1 for _ in archive.run("r").cases(HUMAN))
        )
        decided, reviews = [decision(name) for name in names[:300]], archive.run("r").reviews()
        write_rate("add decisions", lambda some: reviews.add(some[0]), decided, batch=1)
        for form in ("parquet", "jsonl"):
            path = directory / f"cases.{form}"
            read_rate(
                f"export, {form}",
                11_000,
                partial(export_run, archive.run("r"), path, CODEBOOK, form),
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        if sys.argv[1:] == ["sqlite"]:
            main(str(Path(name, "archive.db")), Path(name))
        else:
            with postgres_server(durable=True) as server:
                main(server.create_database("speed"), Path(name))
