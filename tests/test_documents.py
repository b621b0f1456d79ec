"""The documents: short where they promise it, and all that they name is there and is accepted."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.search import Draws, trial_config
from raylab.arc.sweep import best_yaml
from raylab.core.config.compose import load_config
from tests.job_configs import JOB_CONFIGS

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path for path in sorted((ROOT / "jobs/guide").glob("*.md"))}
"""The guide: a page a job."""
DOCUMENTS = (
    "README.md",
    "jobs/README.md",
    *(f"jobs/guide/{path.name}" for path in PAGES.values()),
    "deploy/README.md",
    "raylab/README.md",
    "raylab/arc/data/curriculum/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "llms.txt",
)
TEXTS = {name: (ROOT / name).read_text() for name in DOCUMENTS}
GUIDE = "\n".join(text for name, text in TEXTS.items() if name.startswith("jobs/"))
SCRIPTS = sorted((ROOT / "jobs").glob("*.py"))
KINDS = {kind.job: kind for kind in JOB_CONFIGS}
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
INLINE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"\bpython jobs/(\w+)\.py((?: [^|`]*)?)|^submit (\w+) (.*)$")
WORDS = 900
PICTURE_BYTES = 200_000


def prose(text: str) -> str:
    return FENCED.sub("", text)


def blocks(text: str, *languages: str) -> Iterator[str]:
    for _, language, block in FENCED.findall(text):
        if language in languages:
            yield block


def named_blocks(language: str) -> dict[str, str]:
    """Returns the files of the guide, which name themselves in a comment on their first line."""
    named = ((re.match(r"# ([\w.]+)", block), block) for block in blocks(GUIDE, language))
    return {name[1]: block for name, block in named if name}


def lines(shell: str) -> Iterator[str]:
    yield from shell.replace("\\\n", " ").splitlines()


def commands(*candidates: str) -> Iterator[str]:
    """Command lines of jobs, as `train key=value ...`."""
    for line in candidates:
        for job, own, submitted, more in COMMAND.findall(line):
            arguments = shlex.split(own or more, comments=True)
            yield shlex.join([job or submitted, *arguments])


def documented() -> Iterator[str]:
    for text in TEXTS.values():
        for block in blocks(text, "bash"):
            yield from commands(*lines(block))
        # Alone it is the job's name.
        inline = (" ".join(code.split()) for code in INLINE.findall(prose(text)))
        yield from commands(*(code for code in inline if " " in code.partition("jobs/")[2]))
    for script in SCRIPTS:
        yield from commands(*lines(script.read_text()))


def variants() -> Iterator[str]:
    """What the tables of the guide propose to add to the command of their job."""
    for job, page in PAGES.items():
        for section in page.read_text().split("| to | use |")[1:]:
            for code in INLINE.findall(section.partition("\n\n")[0]):
                if "=" in code and not code.startswith((".", "python")) and not code.endswith("="):
                    yield shlex.join([job, *shlex.split(code)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files that commands take by `--config`."""
    directory = tmp_path_factory.mktemp("files")
    best = {"best.yaml": "model:\n  architecture: decoder_only\n"}
    written = named_blocks("yaml") | best
    for name, text in written.items():
        (directory / name).write_text(text)
    return {name: directory / name for name in written}


def load(command: str, files: dict[str, Path]) -> Any:
    """The configuration of a command, whose files are those that documents show."""
    job, *arguments = shlex.split(command)
    file = None
    if "--config" in arguments:
        place = arguments.index("--config")
        file = files[Path(arguments[place + 1]).name]
        del arguments[place : place + 2]
    names = [argument.removeprefix("codebook=") for argument in arguments]
    overrides = [
        f"codebook={files[name]}" if name in files else argument
        for name, argument in zip(names, arguments, strict=True)
        if argument not in ("--help", "--cfg", "job")
    ]
    return load_config(KINDS[job], overrides, file)


@pytest.mark.parametrize("command", sorted(set(documented())))
def test_every_command_is_accepted(command: str, files: dict[str, Path]) -> None:
    assert load(command, files)


@pytest.mark.parametrize("command", sorted({c for c in documented() if c.startswith("tune")}))
def test_the_best_of_every_sweep_is_a_training(
    command: str, files: dict[str, Path], tmp_path: Path
) -> None:
    config = load(command, files)
    draws = Draws(config)
    for number in range(6):
        if drawn := draws.draw(str(number)):
            trial = trial_config(config, drawn, storage=str(tmp_path), name="t")
            (tmp_path / "best.yaml").write_text(best_yaml(trial))
            best = load_config(TrainConfig, [], tmp_path / "best.yaml")
            parts = ("model", "data", "training", "init_from")
            assert [getattr(best, p) for p in parts] == [getattr(trial, p) for p in parts]


@pytest.mark.parametrize("command", sorted(set(variants())))
def test_every_variant_is_accepted(command: str, files: dict[str, Path]) -> None:
    job, *arguments = shlex.split(command)
    load_config(KINDS[job], arguments, files["models.yaml"] if job == "annotate" else None)


def test_every_job_has_an_example_and_a_page() -> None:
    for script in SCRIPTS:
        assert f"python jobs/{script.name}" in TEXTS["README.md"]
        assert PAGES[script.stem].read_text().startswith(f"# {script.stem.title()}\n")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    for target in LINK.findall(prose(TEXTS[document])):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", prose(path.read_text()), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_target_and_module_exists(document: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for name in re.findall(r"(?:`|^)make ([\w-]+)", TEXTS[document], re.M):
        assert name in targets
    for module in re.findall(r"python -m ([\w.]+)", TEXTS[document]):
        assert importlib.util.find_spec(module), module


def test_the_tree_of_the_architecture_is_that_of_the_checkout() -> None:
    tree = next(blocks(TEXTS["raylab/README.md"], ""))
    places: list[str] = []
    for indent, name in re.findall(r"^( *)([\w.]+/?)(?: |$)", tree, re.M):
        del places[len(indent) // 2 :]
        places.append(name)
        assert (ROOT / "/".join(places)).exists(), "/".join(places)
    drawn = set(re.findall(r"^  ([\w.]+?)/? ", tree, re.M))
    there = {path.name for path in (ROOT / "raylab").iterdir() if path.is_dir() or path.suffix}
    assert there - drawn <= {"__init__.py", "__pycache__", "README.md", "py.typed"}


def test_llms_txt_has_the_form_of_llmstxt_org_and_names_every_document() -> None:
    head, *sections = re.split(r"^## .+\n", TEXTS["llms.txt"], flags=re.M)
    assert re.match(r"# raylab\n\n(> .+\n)+\n", head) and "\n#" not in head
    items = [line for section in sections for line in section.splitlines() if line]
    links = [re.fullmatch(r"- \[[^]]+\]\(([^)]+)\): .+", item) for item in items]
    assert all(links)
    assert {link[1] for link in links if link} == {*DOCUMENTS} - {"llms.txt"}


def test_the_readme_is_short_and_its_pictures_small() -> None:
    assert len(TEXTS["README.md"].split()) <= WORDS
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", TEXTS["README.md"])
    assert len(pictures) == 3
    for picture in pictures:
        assert (ROOT / picture).stat().st_size < PICTURE_BYTES
