"""A process that writes cases into a run and prints the number of each batch when it is in.

    python -m tests.archive.writer LOCATION RUN NAME BATCHES SIZE

The cases are NAME0, NAME1 ... and, in every batch, one `shared` that all writers of the run write.
"""

import sys

from raylab.archive.store import Archive
from tests.archive.rows import call_row, case_row


def main(location: str, run: str, name: str, batches: int, size: int) -> None:
    with Archive.open(location) as archive:
        archive.start_run(run, {}, {})
        for number in range(batches):
            cases = [case_row(f"{name}{number * size + index}") for index in range(size)]
            archive.add_calls([call_row(case.case) for case in cases])
            archive.add_cases(run, [*cases, case_row(f"shared{number}", written_by=name)])
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
