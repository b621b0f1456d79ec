"""Annotations that do what the job does, in one process, with answers from a script or a server."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from raylab.label.archive.records import CaseRow
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.pages.annotation_run import write_results
from raylab.label.protocol.calls import RunWriter
from raylab.label.protocol.protocol import annotate
from raylab.label.protocol.run import (
    AnnotationRun,
    archive_location,
    open_annotation,
    open_cases,
    take_input,
)
from raylab.label.protocol.worker import Worker, case_row
from tests.label.protocol.chats import GOOD, ScriptedChat
from tests.label.protocol.local import local_archive
from tests.together.runs import LLM

MODELS = [{"model": "alpha"}, {"model": "beta"}]


def study(
    root: Path, name: str, codebook: Any, cases: dict[str, Any], **more: Any
) -> AnnotateConfig:
    """The configuration of a run of two annotators.

    Args:
        more: Further keys; `models` are the annotators, and `url` an endpoint that answers.
    """
    llm = {**LLM, "prompt": "maximal", "annotators": more.pop("models", MODELS)}
    if url := more.pop("url", None):
        limits = {"timeout": 60.0, "concurrency": 4}
        llm |= {"endpoints": {"default": {"base_url": url, "limits": limits}}}
    values = {"storage": str(root), "name": name, "llm": llm, "codebook": codebook}
    return AnnotateConfig.model_validate({**values, "cases": cases, "resume": True, **more})


Annotate = Callable[[AnnotationRun], Awaitable[None]]
"""Annotates the open cases of a run, or some of them."""


def carry_out(config: AnnotateConfig, answers: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Annotates the cases that are open, and returns the report.

    Args:
        answers: What both annotators say of each case; a text is a reply that cannot be read.
    """

    async def annotate_all(annotation: AnnotationRun) -> None:
        key = annotation.settings.prompts.form.key
        said = {case.id: pair for (_, case), pair in zip(annotation.cases(), answers, strict=True)}
        rows = list[CaseRow]()
        for _, case in open_cases(annotation.cases(), annotation.archived):
            pair = said[case.id]
            script = {"evaluate-a": GOOD, "evaluate-b": GOOD, "confirm": GOOD}
            for name, answer in zip("ab", pair, strict=True):
                script[f"classify-{name}"] = json.dumps({"rationale": "so", key: answer})
                script[f"classify-{name}-repair"] = script[f"classify-{name}"]
            chosen = {"rationale": "so", "choice": "synthesis", key: pair[0]}
            script["adjudicate"] = json.dumps(chosen)
            outcome = await annotate(case, ScriptedChat(script), annotation.settings)
            rows.append(case_row(case, outcome))
        annotation.archived.add_cases(rows)

    annotate_run(config, len(answers), annotate_all)
    return conclude_run(config)


def send_out(config: AnnotateConfig, cases: int, most: int | None = None) -> None:
    """Annotates the cases that are open, by the models of an endpoint.

    Args:
        most: The run is cut off, with calls in flight, when so many cases are archived.
    """

    async def annotate_all(annotation: AnnotationRun) -> None:
        archived, llm, run = annotation.archived, annotation.config.llm, annotation.run.name
        writer = RunWriter(annotation.archive.place, run, annotation.owner, llm.budget)
        worker = Worker(llm, annotation.settings, run, local_archive(writer))
        left = list(open_cases(annotation.cases(), archived))
        work = asyncio.create_task(worker.annotate(left))
        if most is not None:
            while sum(archived.counts().values()) < most:
                await asyncio.sleep(0.01)
            work.cancel()
        with suppress(asyncio.CancelledError):
            tally = await work
            assert not tally.open_cases and tally.halt is None
        await worker.close()

    annotate_run(config, cases, annotate_all)


def annotate_run(config: AnnotateConfig, cases: int, annotate_all: Annotate) -> None:
    """Does what the job does before its report; the run is finished if no case is open."""
    with _opened(config) as annotation, annotation.own() as owned:
        new, done = take_input(owned)
        assert new + done == cases
        if new:
            asyncio.run(annotate_all(owned))
        if sum(owned.archived.counts().values()) == cases:
            owned.run.finish()


def conclude_run(config: AnnotateConfig) -> dict[str, Any]:
    """Returns the report of a run, as it is now."""
    with _opened(config) as annotation:
        write_results(annotation)
    return json.loads((Path(config.storage) / (config.name or "") / "report.json").read_text())


@contextmanager
def _opened(config: AnnotateConfig) -> Generator[AnnotationRun]:
    record = Run.locate(config).read_record(RunRecord)
    location = archive_location(config.storage, config.archive, record)
    codebook, run = choose_codebook(config), Run.open(config)
    with open_annotation(config, codebook, run, location) as annotation:
        yield annotation
