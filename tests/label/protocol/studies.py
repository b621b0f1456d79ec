"""Annotations that do what the job does, in one process, with answers from a script."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from raylab.label.archive.records import CaseRow
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.pages.annotation_run import conclude
from raylab.label.protocol.protocol import annotate
from raylab.label.protocol.run import (
    AnnotationRun,
    archive_location,
    open_annotation,
    open_cases,
    take_input,
)
from raylab.label.protocol.worker import case_row
from tests.label.protocol.chats import GOOD, ScriptedChat
from tests.together.runs import LLM

MODELS = [{"model": "alpha"}, {"model": "beta"}]


def study(
    root: Path, name: str, codebook: Any, cases: dict[str, Any], **more: Any
) -> AnnotateConfig:
    """The configuration of a run of two annotators."""
    llm = {**LLM, "prompt": "maximal", "annotators": more.pop("models", MODELS)}
    values = {"storage": str(root), "name": name, "llm": llm, "codebook": codebook}
    return AnnotateConfig.model_validate({**values, "cases": cases, "resume": True, **more})


def carry_out(
    config: AnnotateConfig, answers: Sequence[tuple[Any, Any]], most: int | None = None
) -> dict[str, Any]:
    """Annotates the cases that are open, at most some, and returns the report.

    Args:
        answers: What both annotators say of each case; a text is a reply that cannot be read.
        most: The run is killed after so many cases; None finishes it.
    """
    codebook = choose_codebook(config)
    record = Run.locate(config).read_record(RunRecord)
    location = archive_location(config.storage, config.archive, record)
    run = Run.open(config)
    with open_annotation(config, codebook, run, location) as annotation:
        new, done = take_input(annotation)
        assert new + done == len(answers)
        if new:
            asyncio.run(_annotate(annotation, answers, most))
            if most is None:
                run.finish()
        conclude(annotation)
    return json.loads((Path(config.storage) / (config.name or "") / "report.json").read_text())


async def _annotate(
    annotation: AnnotationRun, answers: Sequence[tuple[Any, Any]], most: int | None
) -> None:
    key = annotation.settings.prompts.form.key
    said = {case.id: pair for (_, case), pair in zip(annotation.cases(), answers, strict=True)}
    rows = list[CaseRow]()
    for _, case in [*open_cases(annotation.cases(), annotation.archived)][:most]:
        pair = said[case.id]
        script = {"evaluate-a": GOOD, "evaluate-b": GOOD, "confirm": GOOD}
        for name, answer in zip("ab", pair, strict=True):
            script[f"classify-{name}"] = json.dumps({"rationale": "so", key: answer})
            script[f"classify-{name}-repair"] = script[f"classify-{name}"]
        script["adjudicate"] = json.dumps({"rationale": "so", "choice": "synthesis", key: pair[0]})
        rows.append(case_row(case, await annotate(case, ScriptedChat(script), annotation.settings)))
    annotation.archived.add_cases(rows)
