"""Annotations that do what the job does, in one process, with answers from a script."""

import asyncio
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from raylab.label.archive.records import CaseRow
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.pages.annotation_run import write_results
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
    """The configuration of a run of two annotators.

    Args:
        more: Further keys; `models` are the annotators.
    """
    llm = {**LLM, "prompt": "maximal", "annotators": more.pop("models", MODELS)}
    values = {"storage": str(root), "name": name, "llm": llm, "codebook": codebook}
    return AnnotateConfig.model_validate({**values, "cases": cases, "resume": True, **more})


def carry_out(config: AnnotateConfig, answers: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Does what the job does with the cases that are open, and returns the report.

    Args:
        answers: What both annotators say of each case; a text is a reply that cannot be read.
    """
    with _opened(config) as annotation, annotation.own() as owned:
        assert sum(take_input(owned)) == len(answers)
        key = owned.settings.prompts.form.key
        said = {case.id: pair for (_, case), pair in zip(owned.cases(), answers, strict=True)}
        rows = list[CaseRow]()
        for _, case in open_cases(owned.cases(), owned.archived):
            pair = said[case.id]
            script = {"evaluate-a": GOOD, "evaluate-b": GOOD, "confirm": GOOD}
            for name, answer in zip("ab", pair, strict=True):
                script[f"classify-{name}"] = json.dumps({"rationale": "so", key: answer})
                script[f"classify-{name}-repair"] = script[f"classify-{name}"]
            chosen = {"rationale": "so", "choice": "synthesis", key: pair[0]}
            script["adjudicate"] = json.dumps(chosen)
            outcome = asyncio.run(annotate(case, ScriptedChat(script), owned.settings))
            rows.append(case_row(case, outcome))
        owned.archived.add_cases(rows)
        owned.run.finish()
    return conclude_run(config)


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
