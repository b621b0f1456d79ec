"""Breaks behaviours one at a time, in a copy of the tree, and lists what no test notices."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
COPIES = 2
"""Copies of the tree, in which tests run at the same time."""
SECONDS = 300
"""Longest run of the test of a mutation."""
WIDTH = max(len(mutation.name) for mutation in MUTATIONS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only rows with one of the words")
    parser.add_argument("--list", action="store_true", help="list them and try none")
    arguments = parser.parse_args()
    words = arguments.words or [""]
    chosen = [each for each in MUTATIONS if any(word in " ".join(each) for word in words)]
    if arguments.list or not chosen:
        say(*(f"{each.name:{WIDTH}} {each.file}: {each.test}" for each in chosen))
        return int(not chosen)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        return try_all(chosen, copy_tree(Path(folder)))


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201


def copy_tree(folder: Path) -> list[Path]:
    """Copies the tracked files, with bytecode that Python uses for unchanged sources alone."""
    first, *others = (folder / str(number) for number in range(COPIES))
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, first / name)
    compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiling, "raylab", "tests"], cwd=first, check=True)
    for copy in others:
        shutil.copytree(first, copy)
    return [first, *others]


def try_all(chosen: Sequence[Mutation], copies: Sequence[Path]) -> int:
    """Tries mutations and lists the results; returns 1 if one is missed, or none can be tried."""
    start, missed, free = time.monotonic(), list[str](), SimpleQueue[Path]()
    tests = sorted({test for mutation in chosen for test in mutation.test.split()})
    shares = filter(None, (tests[place :: len(copies)] for place in range(len(copies))))
    with ThreadPoolExecutor(len(copies)) as pool:
        for status, output in pool.map(run_tests, copies, shares, [4 * SECONDS] * len(copies)):
            if status:
                say(output, "These tests fail without any mutation, so none is tried.")
                return 1
        say(f"{time.monotonic() - start:5.0f} s  all tests pass without a mutation")
        for copy in copies:
            free.put(copy)
        trying = {pool.submit(try_one, mutation, free): mutation for mutation in chosen}
        for done in as_completed(trying):
            name, fault = trying[done].name, done.result()
            missed += [name] if fault else []
            say(f"{time.monotonic() - start:5.0f} s  {name:{WIDTH}} {fault or 'caught'}")
    say(f"{len(chosen) - len(missed)} of {len(chosen)} are caught; not: {', '.join(missed) or '-'}")
    return int(bool(missed))


def try_one(mutation: Mutation, free: SimpleQueue[Path]) -> str:
    """Runs the tests of a mutation in a free copy; returns why they miss it, or nothing."""
    copy = free.get()
    file = copy / "raylab" / mutation.file
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    try:
        if (count := text.count(mutation.old)) != 1:
            return f"ADAPT IT: {mutation.file} has {count} times {mutation.old!r}"
        changed = text.replace(mutation.old, mutation.new)
        compile(changed, mutation.file, "exec")
        file.write_text(changed, encoding="utf-8")
        status, output = run_tests(copy, mutation.test.split(), SECONDS)
        file.write_text(text, encoding="utf-8")
        # Other statuses of pytest are no failed test: it collected none, or an import failed.
        return {0: "NOT CAUGHT", 1: ""}.get(status, f"NO RESULT, status {status}: {output}")
    except SyntaxError as error:
        return f"ADAPT IT: {error}"
    finally:
        free.put(copy)


def run_tests(copy: Path, tests: Sequence[str], seconds: float) -> tuple[int, str]:
    """Runs tests until one fails or the time is over; returns pytest's exit status and output."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [f"tests/{test}" for test in tests]
    with subprocess.Popen(
        command, cwd=copy, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    return process.returncode, output


if __name__ == "__main__":
    sys.exit(main())
