"""Every command of every document reaches its end, on a small part of what it works on.

The commands run in one directory, trainings first, so that each finds the runs that it names.
"""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylab.arc.config.sections import DataConfig
from raylab.arc.data.sources import load_tasks
from tests.conftest import RunScript
from tests.jobs.test_annotate import write_cases
from tests.test_documents import documented, named_blocks, variants

ROOT = Path(__file__).parents[2]
JOBS = "train tune pipeline evaluate annotate quality review report benchmark".split()
"""In an order in which the runs that a command names are there."""
ELSEWHERE = {
    "s3://": "tests/core/on_ray/test_nodes.py trains and evaluates on object storage",
    "accelerator_type=A100": "tests/core/on_ray/test_session.py places by it",
    "label_selector": "tests/core/on_ray/test_session.py places by it",
    "postgresql:": "tests/jobs/test_annotate.py annotates into PostgreSQL",
    "import=": "tests/label/review/test_label_studio.py imports what people decided",
    "speedrun=hour": "tests/together/speed/test_parts.py has a speedrun of seconds",
    "conclude run=": "tests/label/conclusions has people label a run and draws conclusions from it",
    "name=tickets": "the same, of a run with columns of its own",
    "conclude table=": "tests/label/conclusions/test_table.py has tables that were made elsewhere",
    "cluster.workers=[2,8]": "tests/faults adds and removes the nodes of such a training",
}
"""Commands that need more than this machine, and what covers them."""
NARROW = {"d_model": 16, "d_ff": 32, "heads": 2}
WIDTHS = ", ".join(f"{key}: {value}" for key, value in NARROW.items())
NAMED = ("champion", "encoder_decoder", "decoder_only")
LISTED = [f"{{architecture: {name}, {WIDTHS}}}" for name in NAMED]
SPACE = [f"space.model.{n}.{key}.choice=[{value}]" for n in NAMED for key, value in NARROW.items()]
FINE_TUNED = ("007bbfb7", "00d62c1b", "3befdf3e")
JUDGED = {
    "id": "a",
    "description": "It mutates designs and keeps the better half.",
    "candidate": {"code": "OPT=Evo", "rationale": "Selection among variants."},
}
COMPLAINTS = "Nr;Body;Cause\n1;Nobody rang.;handling\n"
PRICE = "{input: 1, output: 1}"
SMALL = {
    r"(train|tune|pipeline)\b": ["training.epochs=1"],
    r".*(data=curriculum|scale=demo)": ["data.pairs_per_task=8"],
    r"(train|tune|pipeline|evaluate|benchmark)\b(?!.*(data=[cr]|scale=))": ["data.every=40"],
    r"train\b(?!.*(init_from|model=custom))": [f"model.{k}={v}" for k, v in NARROW.items()],
    r"(train|tune)\b.*workers": ["cluster.workers=2"],
    r"tune\b(?!.*--config)": ["trials=2", *SPACE],
    r"tune\b.*mygrid": ["space.training.seed.choice=[1]", *SPACE[: len(NARROW)]],
    r"pipeline\b": ["cluster.cpus_per_worker=1", "generations=[published,1]"],
    r"pipeline\b(?!.*scale=published)": [f"models=[{LISTED[0]},{LISTED[2]}]"],
    r"pipeline\b.*scale=published": [
        f"models=[{LISTED[0]},{LISTED[0]}]",
        f"fine_tuning.tasks=[{','.join(FINE_TUNED)}]",
        "fine_tuning.training.epochs=1",
    ],
    r"pipeline\b.*prior=": ["prior.every=40"],
    r"evaluate\b.*models=.*scoring=arc": ["scoring.votes.views=2"],
    r"evaluate\b.*test_time_training={steps": [
        "scoring.test_time_training.steps=1",
        "scoring.test_time_training.augmentations=1",
    ],
    r"annotate\b(?!.*(name=systems|resume=true))": ["cases.take=1", "actors=1"],
    r"annotate --config models.yaml resume=true": ["cases.path=systems.jsonl", "name=systems"],
    r"annotate\b.*stages=evaluate": ["cases.path=judged.jsonl"],
    r"annotate\b.*money=": [f"llm.prices={{M: {PRICE}, N: {PRICE}}}"],
    r"benchmark\b": [
        *("rounds=1", "batch_size=4", "threads=1", "cases=20", "latency=0"),
        f"models=[{LISTED[0]}]",
    ],
}
"""The keys that make commands small, by how these begin."""
PLACES = {
    "runs/my-run": "runs/champion",
    "runs/my-pipeline": "runs/two",
    "runs/my-sweep": "runs/sweep",
    "runs/train-3f2a90c1de": "runs/champion",
    "runs/monday": "runs/champion",
    "runs/tuesday": "runs/tuned",
    "runs/january": "runs/systems",
    "shared/runs": "runs",
    "data/runs": "runs",
    "data/older": "runs/scores",
    "scores": "runs/scores/scores",
    "logs": "runs/scores/scores",
    "artifacts/scores/run7": "runs/scores/scores",
    "earlier": "runs/scores",
    "submission.json": "runs/prize/submissions/champion/published/submission.json",
}
"""What documents name and do not make, and what stands for it."""

pytestmark = [pytest.mark.documents, pytest.mark.ray, pytest.mark.slow]


def rank(command: str) -> tuple[float, bool]:
    """Returns the sort key of a command: those first whose runs others name."""
    late = "best.yaml" in command or "init_from" in command
    job = command.partition(" ")[0]
    place = JOBS.index(job) if job in JOBS else len(JOBS)
    return place + 1.5 * late, "resume=true" in command


def commands() -> list[str]:
    """Returns all commands that this machine can run; what a table adds is for a real endpoint."""
    added = (re.sub("^annotate", "annotate --config models.yaml", v) for v in variants())
    every = dict.fromkeys([*documented(), *added])
    return sorted((c for c in every if not any(word in c for word in ELSEWHERE)), key=rank)


@pytest.fixture(scope="session", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, chat: str) -> Iterator[Path]:
    """The directory of all commands, with the files that they name."""
    place = tmp_path_factory.mktemp("documented")
    files = named_blocks("python") | named_blocks("yaml")
    endpoint = f"default: {{base_url: {chat}, api_key_env: null}}"
    files |= {
        "models.yaml": re.sub(r"default: {.*}", endpoint, files["models.yaml"]),
        "judged.jsonl": json.dumps(JUDGED),
        "complaints.csv": COMPLAINTS,
        "table.csv": "Model,item,score\n"
        + "".join(f"{m},{n},{n}\n" for m in "ab" for n in range(11)),
    }
    for name, text in files.items():
        (place / name).write_text(text)
    write_cases(place, 6)
    write_tasks(place)
    for name, stands_in in PLACES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).symlink_to(place / stands_in)
    with pytest.MonkeyPatch.context() as patch:
        # The processes of Ray find a user's model by it.
        patch.setenv("PYTHONPATH", f"{place}:{ROOT}")
        patch.setenv("BASE_ARTIFACTS_DIR", str(place / "artifacts"))
        patch.setenv("RAYLAB_REVIEW_TOKEN", "0" * 64)
        patch.syspath_prepend(place)
        yield place


@pytest.fixture
def tmp_path(place: Path) -> Path:
    """Where `run_script` runs."""
    return place


def write_tasks(place: Path) -> None:
    """Writes two archives of the same tasks in other colours, splits and categories."""
    every = load_tasks(DataConfig())
    tasks = {task.id: task.pairs for task in every if task.id in FINE_TUNED}
    tasks |= {task.id: task.pairs for task in every[5::40]}
    for file in ("re_arc.zip", "fresh.zip"):
        with zipfile.ZipFile(place / file, "w") as archive:
            for name, pairs in tasks.items():
                content = [
                    {"input": (9 - p.input).tolist(), "output": (9 - p.output).tolist()}
                    for p in pairs
                ]
                archive.writestr(f"tasks/{name}.json", json.dumps(content))
    names = sorted(tasks)
    for file in ("split_308_92.json", "split.json"):
        (place / file).write_text(json.dumps({"train": names[:-3], "val": names[-3:]}))
    (place / "categories.json").write_text(json.dumps({name: name[0] for name in names}))


def shrink(command: str, place: Path) -> list[str]:
    """Returns job and arguments of the command on little data, all places below `place`."""
    at_home = re.sub(r"\$PWD|(?<![\w/])(?=/(shared|data)/)", str(place), command)
    job, *arguments = shlex.split(at_home)
    for pattern, keys in SMALL.items():
        if re.match(pattern, command):
            arguments += keys
    if not re.search(r"\b(name|drift|run_id)=", " ".join(arguments)):
        first = command.replace("resume=true", "").strip()
        arguments.append(f"name={job}-{zlib.crc32(first.encode())}")
    return [job, *arguments]


def clear(job: str, arguments: list[str], place: Path) -> None:
    """Removes what an earlier command of the same name has left."""
    keys = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if "resume" not in keys and job != "review" and "name" in keys:
        shutil.rmtree(place / "runs" / keys["name"], ignore_errors=True)
    if "export" in keys and job == "review":
        (place / keys["export"]).unlink(missing_ok=True)


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[:60])
def test_reaches_its_end(command: str, place: Path, run_script: RunScript) -> None:
    job, *arguments = shrink(command, place)
    clear(job, arguments, place)
    if job == "review" and not any(a.startswith("export=") for a in arguments):
        assert_serves(arguments, place)
        return
    ended = run_script(job, *arguments)
    assert ended.returncode == 0, f"{command}\n{ended.stderr}"


def assert_serves(arguments: list[str], place: Path) -> None:
    """The page is served until an interrupt."""
    command = [sys.executable, f"{ROOT}/jobs/review.py", *arguments, "port=0"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("http" in line for line in process.stdout), command
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
