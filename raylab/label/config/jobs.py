"""The configurations of `jobs/annotate.py`, `review.py` and `conclude.py`."""

from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, IPvAnyNetwork, PositiveInt, model_validator

from raylab.core.config.base import (
    ClusterConfig,
    Fraction,
    JobConfig,
    Keys,
    LocalPath,
    Location,
    RunName,
    Seed,
    Strict,
    Text,
    Trackers,
)
from raylab.label.config.codebook import EXAMPLES, CodebookConfig, read_codebook
from raylab.label.config.sections import (
    CasesConfig,
    LlmConfig,
    PeopleConfig,
    ProtocolConfig,
    idle_roles,
)


class AnnotateConfig(JobConfig):
    """`jobs/annotate.py`."""

    job: ClassVar[str] = "annotate"
    main: ClassVar[Keys] = (
        "codebook",
        "cases.path",
        "cases.text",
        "cases.gold",
        "dry_run",
        "llm.budget.money",
        "export",
    )

    llm: LlmConfig
    codebook: Text | CodebookConfig = "opt"
    """What the texts are classified by: opt, sentiment, topics, entities, or a YAML file."""
    cases: CasesConfig = CasesConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    review: PeopleConfig = PeopleConfig()
    generations: tuple[Location, ...] = ()
    """Case files that are further generations of the score tree, such as other wordings."""
    fresh: bool = False
    """Repeat calls that other runs in the archive have answered, to measure drift."""
    archive: Location | None = None
    """File, or SQLAlchemy URL without password (PGPASSWORD); null is `<storage>/archive.db`."""
    actors: PositiveInt | None = None
    """Processes that send calls; null takes one per CPU."""
    dry_run: bool = False
    """Print the number and cost of the calls and tokens that the run would need, and stop: nothing
    is sent, and no run is made."""
    export: Literal["parquet", "csv", "label-studio", "inspect"] | None = None
    """Also write the archived cases of the run to `<run>/cases.parquet`, `cases.csv`,
    `label-studio.json` (tasks with predictions and annotations) or `inspect/` (logs with samples).
    """
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ()

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Reads the codebook's file, and leaves out the models of roles that nobody asks."""
        name = values.get("codebook")
        if isinstance(name, str) and (name in EXAMPLES or PurePath(name).suffix):
            values = {**values, "codebook": read_codebook(EXAMPLES.get(name, name))}
        match values:
            case {"llm": dict(llm), "protocol": dict(protocol)}:
                roles = cast("dict[str, Any]", llm)
                rules = cast("dict[str, Any]", protocol)
                idle = idle_roles(rules.get("stages"), rules.get("adjudicator"))
                return {**values, "llm": {k: v for k, v in roles.items() if k not in idle}}
            case _:
                return values

    @model_validator(mode="after")
    def _has_a_model_for_each_role(self) -> "AnnotateConfig":
        rules = self.protocol
        idle = idle_roles(rules.stages, rules.adjudicator)
        roles = ("annotators", "adjudicator")
        missing = [f"llm.{key}" for key in roles if key not in idle and not getattr(self.llm, key)]
        if missing:
            raise ValueError(
                f"protocol.stages={rules.stages} needs {', '.join(missing)}: configure the model "
                "of each, or judge candidates by the evaluator alone with protocol.stages=evaluate"
            )
        return self


class AuditPlan(Strict):
    """The draw of a number of cases for the audit."""

    plan: Literal["even", "active"] = "active"
    """active draws more of the cases whose label is probably wrong, in four blocks, each after
    people have labelled the last one."""
    cases: PositiveInt
    """Number of cases, about."""


class ReviewConfig(JobConfig):
    """`jobs/review.py`."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    job: ClassVar[str] = "review"
    main: ClassVar[Keys] = ("export", "import", "audit", "reviewer", "archive", "host", "port")

    name: RunName | None = None
    """The annotation run whose open cases are reviewed."""
    export: LocalPath | None = None
    """Write the open cases to this file as tasks of Label Studio, instead of serving the page."""
    import_: LocalPath | None = Field(default=None, alias="import")
    """Archive the annotations in this file, a JSON or JSON-MIN export of Label Studio."""
    audit: Annotated[float, Field(gt=0, le=1)] | AuditPlan | None = None
    """AuditDraw a random sample of this share of the cases that the protocol decided, for people to
    classify unseen on the page; export= writes it instead of the open cases. audit.plan and
    audit.cases draw a number instead."""
    reviewer: Text | None = None
    """Name archived with imported decisions that carry none."""
    archive: Location | None = None
    """Present location of the archive, like `archive` of the annotation; null if unchanged."""
    host: Text = "127.0.0.1"
    """Address to listen at; any but a loopback address needs RAYLAB_REVIEW_TOKEN."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """Port; 0 takes any free one."""
    hosts: tuple[Text, ...] = ()
    """Further host names under which browsers reach the page, such as that of a proxy."""
    proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses, or networks such as 10.0.0.0/8, of TLS proxies before the page, whose
    X-Forwarded-Proto and X-Forwarded-For are believed."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> "ReviewConfig":
        if self.name is None:
            raise ValueError("needs name=, the annotation run whose cases are reviewed")
        if self.export is not None and self.import_ is not None:
            raise ValueError("takes export= or import=, not both")
        if self.reviewer is not None and self.import_ is None:
            raise ValueError("reviewer= goes with import=; the page asks for a name itself")
        return self


class ConcludeConfig(JobConfig):
    """`jobs/conclude.py`."""

    job: ClassVar[str] = "conclude"
    main: ClassVar[Keys] = ("run", "field", "labels", "by", "covariates", "outcome", "cluster")

    run: Text | None = None
    """The annotation run: a name under `storage`, a directory or a URI."""
    field: Text | None = None
    """The field of an answer that is a record; null takes the first."""
    labels: tuple[Text, ...] | None = None
    """The labels to count; null takes all that occur."""
    by: Text | None = None
    """Column of the cases with their groups, whose shares or means are compared."""
    covariates: tuple[Text, ...] = ()
    """Columns of the cases, numbers or words, on which the label is regressed."""
    outcome: Text | None = None
    """Column of the cases, numbers, which is regressed on the label and `covariates`."""
    cluster: Text | None = None
    """Column of the cases that names what several cases come from, such as their author."""
    within: Fraction = 0.03
    """Half of the width of an interval, of a share, for which the labels needed are estimated."""
    archive: Location | None = None
    """Present location of the archive, like `archive` of the annotation; null if unchanged."""
    seed: Seed = 307
    """Seed of the parts in which labels are predicted."""

    @model_validator(mode="after")
    def _asks_one_question(self) -> "ConcludeConfig":
        if self.run is None:
            raise ValueError("needs run=, the annotation run whose labels are counted")
        if self.by is not None and (self.covariates or self.outcome):
            raise ValueError("by= compares groups, and covariates= and outcome= regress: give one")
        return self
