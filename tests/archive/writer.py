"""A process that writes cases into a run and prints the number of each batch when it is in.

    python -m tests.archive.writer LOCATION RUN NAME BATCHES SIZE

It prints `ready` and starts when it gets a line, so that several may start at once.
"""

import sys
from collections.abc import Iterator

from raylab.archive.store import Archive
from tests.archive.rows import add_calls, call_row, case_row


def write(location: str, run: str, name: str, batches: int, size: int) -> Iterator[int]:
    """Writes batches, and yields the number of each when it is in.

    The cases are NAME0, NAME1 ... and, in every batch, one `shared` that all writers of the run
    write.
    """
    with Archive.open(location) as archive:
        archive.start_run(run, {}, {})
        for number in range(batches):
            cases = [case_row(f"{name}{number * size + index}") for index in range(size)]
            add_calls(archive, [call_row(case.case) for case in cases])
            archive.run(run).add_cases([*cases, case_row(f"shared{number}", written_by=name)])
            yield number


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(location: str, run: str, name: str, batches: int, size: int) -> None:
    say("ready")
    sys.stdin.readline()
    for number in write(location, run, name, batches, size):
        say(number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
