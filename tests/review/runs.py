"""An annotation run whose cases wait for a person, made without Ray against a chat server."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from raylab.annotation.input.cases import Case
from raylab.annotation.protocol import annotate
from raylab.annotation.run import archive_location
from raylab.annotation.settings import protocol_settings
from raylab.archive.records import CaseRow
from raylab.archive.store import Archive
from raylab.config.compose import load_config
from raylab.config.jobs import AnnotateConfig
from raylab.runs.run import Run
from raylab.runs.run_record import identity_of
from raylab.taxonomies import choose_codebook
from tests.annotation.local import client_of_run

MODELS = {
    "annotator_a": "quux-a",
    "annotator_b": "quux-b",
    "evaluator": "quux-judge",
    "adjudicator": "quux-chair",
}
ENDPOINT = "llm.endpoints.default"

ONE = "[[gold=Evo;a=Evo;b=Sch;eval_a=90;eval_b=40]]"
"""Only A's code is acceptable."""
NEITHER = "[[gold=Ctl;a=Lrn;b=Lrn/Ctl;eval_a=30;eval_b=55]]"
UNCONFIRMED = "[[gold=Sym;a=Sym+Sch;b=Sch;eval_a=90;eval_b=85;adj=Prb;eval_adj=20]]"
AGREED = "[[gold=Lrn;a=Lrn;b=Lrn;eval_a=92;eval_b=92]]"


def annotation(storage: Path, url: str, *overrides: str) -> AnnotateConfig:
    """The configuration of run `systems`, with models served at a URL."""
    models = [f"llm.{role}.model={model}" for role, model in MODELS.items()]
    endpoint = ["llm=openai", f"{ENDPOINT}.base_url={url}", f"{ENDPOINT}.api_key_env=null"]
    place = [f"storage={storage}", "name=systems"]
    return load_config(AnnotateConfig, [*endpoint, *models, *place, *overrides])


def make_run(config: AnnotateConfig, cases: Mapping[str, str | Case]) -> None:
    """Annotates descriptions, or cases, by their id."""
    run = Run.open(config, config.job)
    given = [
        replace(case, id=name) if isinstance(case, Case) else Case(name, case)
        for name, case in cases.items()
    ]
    with Archive.open(archive_location(config)) as archive:
        archive.start_run(run.name, identity_of(config), {}, run.id)
        archive.run(run.name).add_cases(asyncio.run(_rows(config, archive, given)))


async def _rows(config: AnnotateConfig, archive: Archive, cases: list[Case]) -> list[CaseRow]:
    settings = protocol_settings(config, "systems", choose_codebook(config.protocol))
    with archive.run("systems").own() as owner:
        async with client_of_run(config.llm, archive, "systems", owner.token) as client:
            outcomes = [await annotate(case, client, settings) for case in cases]
    return [
        CaseRow(
            case.id,
            case.description_hash,
            case.description,
            outcome.status,
            outcome.model_dump(mode="json"),
        )
        for case, outcome in zip(cases, outcomes, strict=True)
    ]
