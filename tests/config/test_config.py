"""Composition and validation of every job's configuration."""

import itertools
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from raylab.config.annotation import CasesConfig
from raylab.config.base import ClusterConfig, JobConfig
from raylab.config.compose import CONFIGS, as_yaml, config_groups, load_config
from raylab.config.jobs import (
    AnnotateConfig,
    BenchmarkConfig,
    EvaluateConfig,
    PipelineConfig,
    QualityConfig,
    ReportConfig,
    ReviewConfig,
    TrainConfig,
    TuneConfig,
)
from raylab.config.models import ALL_MODELS, MODEL_CONFIGS, ChampionConfig, DecoderOnlyConfig
from raylab.config.search import Domain
from raylab.errors import ConfigError

JOBS: list[type[JobConfig]] = [
    TrainConfig,
    TuneConfig,
    EvaluateConfig,
    AnnotateConfig,
    ReviewConfig,
    QualityConfig,
    PipelineConfig,
    ReportConfig,
    BenchmarkConfig,
]
NEEDED: dict[type[JobConfig], dict[str, Any]] = {
    TuneConfig: {"space": yaml.safe_load((CONFIGS / "tune.yaml").read_text())["space"]},
    EvaluateConfig: {"models": ("a.ckpt",)},
    ReportConfig: {"runs": ("a",)},
    ReviewConfig: {"name": "systems"},
    AnnotateConfig: {"llm": yaml.safe_load((CONFIGS / "llm" / "embedded.yaml").read_text())},
}
"""Keys without a default."""
NEEDS_PATH = {"arc_json", "re_arc"}
ROLES = ("annotator_a", "annotator_b", "evaluator", "adjudicator")


def group_choices() -> list[tuple[type[JobConfig], str, str]]:
    return [
        (kind, group, option)
        for kind in JOBS
        for group, options in config_groups(kind).items()
        for option in options
    ]


def needed(kind: type[JobConfig]) -> list[str]:
    """Overrides without which the job has no configuration."""
    overrides: dict[type[JobConfig], list[str]] = {
        EvaluateConfig: ["models=[a.ckpt]"],
        ReportConfig: ["runs=[a]"],
        ReviewConfig: ["name=systems"],
    }
    return overrides.get(kind, [])


def assert_contains(values: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_contains(values[key], value)
        elif isinstance(value, list) and isinstance(value[0], dict):
            for found, wanted in zip(values[key], value, strict=True):
                assert_contains(found, wanted)
        else:
            assert values[key] == value


def refusal(kind: type[JobConfig], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(kind, overrides)
    return str(caught.value)


@pytest.mark.parametrize("kind", JOBS)
def test_shipped_job_config_is_the_models_default(kind: type[JobConfig]) -> None:
    # Runs recorded the default cases of before as null.
    before = ["cases.packaged=null"] if kind is AnnotateConfig else []
    assert load_config(kind, [*needed(kind), *before]) == kind(**NEEDED.get(kind, {}))


@pytest.mark.parametrize(("kind", "group", "option"), group_choices())
def test_every_group_option_loads_and_is_chosen(
    kind: type[JobConfig], group: str, option: str
) -> None:
    overrides = [*needed(kind), f"{group}={option}"]
    if option in NEEDS_PATH:
        overrides.append("data.path=tasks.zip")
    if (group, option) == ("model", "custom"):
        overrides.append("model.target=package.module:Class")
    if (group, option) == ("llm", "openai"):
        overrides += [f"llm.{role}.model=m" for role in ROLES]
    text = (CONFIGS / group / f"{option}.yaml").read_text()
    sets = yaml.safe_load(text)
    sets.pop("defaults", None)
    assert_contains(
        load_config(kind, overrides).model_dump(mode="json"),
        sets if "@package _global_" in text else {group: sets},
    )


def test_no_shipped_yaml_is_unreachable() -> None:
    reachable = {CONFIGS / f"{kind.job}.yaml" for kind in JOBS}
    reachable |= {CONFIGS / group / f"{option}.yaml" for _, group, option in group_choices()}
    assert set(CONFIGS.rglob("*.yaml")) == reachable


@pytest.mark.parametrize("kind", JOBS)
def test_printed_configuration_loads_back_to_the_same(kind: type[JobConfig]) -> None:
    data = ["data=re_arc", "data.path=a.zip"] if "data" in config_groups(kind) else []
    config = load_config(kind, [*needed(kind), "name=1_000", *data])
    assert kind.model_validate(yaml.safe_load(as_yaml(config))) == config


def test_overrides_reach_keys_that_no_yaml_names() -> None:
    config = load_config(
        TrainConfig,
        ["training.lr=0.001", "model.d_model=128", "training.objective.w_cell=1", "name=night"],
    )
    assert isinstance(config.model, ChampionConfig)
    assert (config.training.lr, config.model.d_model) == (0.001, 128)
    assert (config.training.objective.w_cell, config.name) == (1.0, "night")


def test_sections_of_a_file_replace_the_jobs_own(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text("model: {architecture: decoder_only, layers: 2}\ntraining: {lr: 0.01}\n")
    config = load_config(TrainConfig, ["training.epochs=7"], file)
    assert config.model == DecoderOnlyConfig(layers=2)
    assert (config.training.lr, config.training.epochs) == (0.01, 7)
    assert load_config(TrainConfig, ["model=champion"], file).model == ChampionConfig()
    with pytest.raises(ConfigError, match=r"absent\.yaml cannot be read"):
        load_config(TrainConfig, [], tmp_path / "absent.yaml")


SPACE_MISTAKES = [
    ("space.training.lr.uniform=[1,2]", "space.training.lr: needs exactly one of"),
    ("space.training.dropout.choice=[0.1]", "training has no key dropout; its keys: epochs"),
    ("space.model.champion.heads.choice=[4,3]", "a multiple of heads=3"),
    ("space.training.lr.log_uniform=[0.1,0.01]", "0.1 should be less than 0.01"),
    ("space.training.lr.log_uniform=[0,0.01]", "greater than 0"),
    ("space.training.epochs.integer=[0,5]", "epochs: given 0"),
    ("space.model={custom: {demonstrations: {choice: [1]}}}", "target"),
    ("space.model={champion: {options.d_model: {choice: [8]}}}", "no key options.d_model"),
]


@pytest.mark.parametrize(("override", "message"), SPACE_MISTAKES)
def test_a_search_space_that_cannot_be_trained_is_refused(override: str, message: str) -> None:
    assert message in refusal(TuneConfig, override)


def test_a_domain_is_replaced_by_one_of_another_kind() -> None:
    config = load_config(
        TuneConfig, ["space.training.lr.log_uniform=null", "space.training.lr.choice=[0.001,0.01]"]
    )
    assert config.space.training["lr"] == Domain(choice=(0.001, 0.01))


ANNOTATION_MISTAKES = [
    ("llm.annotator_a.endpoint=azure", "annotator_a.endpoint azure is none of endpoints: default"),
    ("+llm={budget: {tokens: 5}, evaluator: {max_tokens: null}}", "set evaluator.max_tokens, or"),
    ("llm.evaluator.extra={api_key: x}", "llm.evaluator.extra: api_key is archived with the call"),
    ("llm.evaluator.extra={Authorization: x}", "name the variable that holds the key in api_key_"),
    ("llm.evaluator.extra={x_auth_token: x}", "x_auth_token is archived with the call"),
    ("llm.evaluator.extra={user: Bearer x}", "user is archived with the call"),
    ("llm.evaluator.extra={service_tier: flex}", "service_tier is set by llm.lane"),
    ("llm.annotator_b.seed=1", "annotator_a and annotator_b are the same call"),
    ("llm.endpoints.default.base_url=localhost:8000", "should start with http:// or https://"),
    ("llm.endpoints.default.base_url='http://host:99999/v1'", "Port out of range 0-65535"),
    ("llm.endpoints.default.base_url='https://me:key@host/v1'", "must carry no key"),
    ("llm.endpoints.default.base_url='https://host/v1?key=1'", "must carry no key"),
    ("llm.endpoints.default.base_url='https://host/v1#key'", "must carry no key"),
    ("llm.endpoints.default.api_key_env=sk-0123", "should be the name of an environment variable"),
    ("llm.endpoints.default.limits.concurrency=0", "greater than 0"),
    ("+cases={path: a.jsonl, python: [os.path]}", "takes one source, has path, python"),
    ("protocol.threshold=101", "less than or equal to 100"),
]


@pytest.mark.parametrize(("override", "message"), ANNOTATION_MISTAKES)
def test_an_annotation_that_cannot_be_run_is_refused(override: str, message: str) -> None:
    assert message in refusal(AnnotateConfig, override)


def test_cases_are_by_default_those_whose_gold_counts() -> None:
    assert load_config(AnnotateConfig, ["cases.take=3"]).cases.packaged == "systems+gold"
    # As runs recorded the default of before.
    assert load_config(AnnotateConfig, ["cases.packaged=null"]).cases == CasesConfig()
    for given in ("cases.packaged=gold", "cases.path=a.jsonl", "cases.python=[os.path]"):
        assert load_config(AnnotateConfig, [given]).cases.packaged in ("gold", None)


def test_the_evaluator_alone_needs_no_other_model_or_endpoint() -> None:
    alone = ["llm=openai", "llm.evaluator.model=judge"]
    # The key of annotators on an endpoint of their own is not asked for.
    of_others = ["+llm.endpoints.other={}", "llm.annotator_a.endpoint=other"]
    config = load_config(AnnotateConfig, [*alone, *of_others, "protocol.stages=evaluate"])
    assert {role: model.endpoint for role, model in config.llm.roles.items()} == {
        "evaluator": "default"
    }
    assert load_config(AnnotateConfig, ["protocol.adjudicator=human"]).llm.adjudicator is None
    missing = refusal(AnnotateConfig, *alone)
    for role in ("annotator_a", "annotator_b", "adjudicator"):
        assert f"llm.{role}.model: is needed" in missing
    missing = refusal(AnnotateConfig, "~llm.annotator_b", "~llm.adjudicator")
    assert "protocol.stages=all needs llm.annotator_b, llm.adjudicator: configure" in missing


REVIEW_MISTAKES = [
    ("port=8700", "needs name=, the annotation run whose cases are reviewed"),
    ("port=65536", "less than or equal to 65535"),
    ("lease_minutes=0.5", "greater than or equal to 1"),
    ("name=a export=a.jsonl import=a.jsonl", "takes export= or import=, not both"),
    ("name=a reviewer=Ada", "reviewer= goes with import="),
]


@pytest.mark.parametrize(("overrides", "message"), REVIEW_MISTAKES)
def test_a_review_that_cannot_be_done_is_refused(overrides: str, message: str) -> None:
    assert message in refusal(ReviewConfig, *overrides.split())


def test_a_key_that_is_a_python_keyword_is_typed_and_printed_as_it_is() -> None:
    config = load_config(ReviewConfig, ["name=a", "import=/a.jsonl"])
    assert config.import_ == Path("/a.jsonl")
    assert yaml.safe_load(as_yaml(config))["import"] == "/a.jsonl"


def test_a_report_compares_runs_or_shows_drift() -> None:
    assert load_config(ReportConfig, ["drift=true", "archive=/a.db"]).runs == ()
    for overrides in ([], ["drift=true", "runs=[a]"]):
        assert "needs either runs=[...]" in refusal(ReportConfig, *overrides)
    assert "archive= goes with drift=true" in refusal(ReportConfig, "runs=[a]", "archive=/a.db")


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_cluster_is_joined_by_address_or_environment(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ClusterConfig(address=address).joined == address
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert ClusterConfig(address=address).joined == (address or "10.0.0.1:6379")


def test_group_choice_keeps_the_overrides_of_its_keys() -> None:
    config = load_config(TrainConfig, ["model.layers=2", "model=decoder_only"])
    assert config.model == DecoderOnlyConfig(layers=2)


def test_hydra_additions_and_deletions_mean_what_hydra_users_know() -> None:
    assert load_config(TrainConfig, ["+training.epochs=3"]).training.epochs == 3
    assert load_config(TrainConfig, ["++training.epochs=3"]).training.epochs == 3
    assert load_config(TrainConfig, ["~model"]).model == TrainConfig().model
    assert "training.epochs" in refusal(TrainConfig, "~training.epochs")


def test_pipeline_takes_architectures_and_whole_models() -> None:
    config = load_config(
        PipelineConfig, ["models=[decoder_only,{architecture: champion, d_model: 128}]"]
    )
    assert config.models == (DecoderOnlyConfig(), ChampionConfig(d_model=128))


def test_task_ids_and_names_that_look_like_integers_stay_text() -> None:
    config = load_config(TrainConfig, ["data.tasks=[45737921,007bbfb7]", "name=20260101"])
    assert config.data.tasks == ("45737921", "007bbfb7")
    assert config.name == "20260101"


def test_a_name_that_reads_as_a_float_is_refused_for_yaml_lost_its_digits() -> None:
    assert "name: given 1.5, should be text" in refusal(TrainConfig, "name=1.50")
    assert load_config(TrainConfig, ["name='1.50'"]).name == "1.50"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(
        TrainConfig,
        [
            "data=re_arc",
            "data.path=a.zip",
            "data.split=s/b.json",
            "data.taxonomy=../t.json",
            "storage=out",
            "init_from=out/old",
        ],
    )
    assert config.data.path == str(tmp_path / "a.zip")
    assert config.data.split == str(tmp_path / "s" / "b.json")
    assert config.data.taxonomy == str(tmp_path.parent / "t.json")
    assert config.storage == str(tmp_path / "out")
    assert config.init_from == str(tmp_path / "out" / "old")
    assert load_config(TrainConfig).storage == str(tmp_path / "runs")


def test_home_is_expanded() -> None:
    assert TrainConfig(storage="~/runs").storage == str(Path.home() / "runs")


def test_uris_stay_as_they_are() -> None:
    for uri in (
        "s3://bucket/runs",
        "s3://bucket/runs?endpoint_override=127.0.0.1:9000&scheme=http",
        "gs://anonymous@bucket/runs",
        "abfs://container@account.dfs.core.windows.net/runs",
        "file:///srv/runs",
    ):
        assert load_config(TrainConfig, [f"storage='{uri}'"]).storage == uri


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:hunter2@bucket/runs",
        "s3://key:slash/hunter2@bucket/runs",
        "s3://hunter2@bucket/runs",
        "s3://bucket/runs?region=eu&secret_key=hunter2",
        "s3://bucket/runs?endpoint_override=http%3A%2F%2Fkey%3Ahunter2%40host",
        "abfs://container@account.dfs.core.windows.net/runs?client_secret=hunter2",
        "s3://bucket/runs?secret%5Fk%65y=hunter2",
        "s3://key%3Ahunter2%40bucket/runs",
        "ftp://u:hunter2@host/runs",
    ],
)
def test_a_secret_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    message = refusal(TrainConfig, f"storage='{uri}'")
    assert "storage: a URI must carry no password or key" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("kind", "override"),
    [
        (TrainConfig, "init_from='{}'"),
        (EvaluateConfig, "models=['{}']"),
        (EvaluateConfig, "generations=['{}']"),
        (PipelineConfig, "take=['{}']"),
    ],
)
def test_no_other_key_takes_a_secret_in_a_uri(kind: type[JobConfig], override: str) -> None:
    message = refusal(kind, override.format("s3://key:hunter2@bucket/runs"))
    assert "a URI must carry no password or key" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "override",
    [
        "llm.endpoints.default.base_url='ftp://u:hunter2@host'",
        "llm.endpoints.default.base_url='u:hunter2@host'",
        "llm.endpoints.default.base_url='https://host/v1?pass%77ord=hunter2'",
        "llm.endpoints.default.base_url='https://user%3Ahunter2%40host/v1'",
        "llm.endpoints.default.base_url='https://hunter2@host/v1'",
        "llm.endpoints.default.base_url='https://host/v1#hunter2'",
        "llm.endpoints.default.base_url='hunter2@host'",
        "llm.endpoints.default.api_key_env=sk-hunter2",
        "llm.endpoints.default='https://u:hunter2@host'",
        "llm.endpoints.default.limits='https://u:hunter2@host'",
        "llm.endpoints.default.limits='host/v1?key=hunter2'",
        "llm.endpoints.default.limits='host/v1?secret_key=hunter2'",
        "llm.evaluator.extra={api_key: hunter2}",
        "archive='postgresql://user%3Ahunter2@host/db'",
        "archive='postgresql://host/db?pass%2577ord=hunter2'",
        "cases.path='https://hunter2@host/cases.jsonl'",
        "name='s3://key:hunter2@bucket'",
    ],
)
def test_no_secret_is_repeated_by_any_key(override: str) -> None:
    assert "hunter2" not in refusal(AnnotateConfig, override)


def test_a_fragment_that_would_be_dropped_is_refused() -> None:
    assert "storage: a # in a URI is written %23" in refusal(TrainConfig, "storage='s3://b/a#1'")


def test_what_people_edit_is_no_uri() -> None:
    for key in ("export", "import"):
        assert f"{key}: should be the path of a local file" in refusal(
            ReviewConfig, f"{key}='s3://bucket/review.jsonl'"
        )


def test_configurations_are_frozen() -> None:
    config = load_config(TrainConfig)
    with pytest.raises(ValidationError, match="frozen"):
        config.training.epochs = 3


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["training.lrr=3"], "training.lrr: unknown key; did you mean training.lr?"),
        (["lr=3"], "lr: unknown key; did you mean training.lr?"),
        (["epoch=3"], "epoch: unknown key; did you mean training.epochs?"),
        (["trainning.lr=3"], "trainning: unknown key; did you mean training?"),
        (
            ["model=decoder_only", "model.d_modle=3"],
            "model.d_modle: unknown key; did you mean model.d_model?",
        ),
        (
            ["training.objective.w_tolerance=1"],
            "training.objective.w_tolerance: unknown key; did you mean training.objective.w_tol?",
        ),
    ],
)
def test_unknown_key_names_the_nearest(overrides: list[str], expected: str) -> None:
    assert expected in refusal(TrainConfig, *overrides).splitlines()[1]


def test_key_of_another_architecture_lists_the_keys_of_this_one() -> None:
    message = refusal(TrainConfig, "model=decoder_only", "model.encoder_dropout=0.1")
    assert "only model.architecture=champion, model.architecture=recursive have this key" in message
    for key in DecoderOnlyConfig.model_fields:
        assert re.search(rf"\b{key}\b", message)
    assert "context_heads" not in message


def test_key_unlike_any_other_lists_the_keys_around_it() -> None:
    assert "w_cell, w_tol, w_ex" in refusal(TrainConfig, "training.objective.qqq=1")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.epochs=three", 'training.epochs: given "three", should be a valid integer'),
        ("training.epochs='3'", 'training.epochs: given "3", should be a valid integer'),
        ("training.epochs=true", "training.epochs: given true, should be a valid integer"),
        ("training.epochs=0", "training.epochs: given 0, should be greater than 0"),
        ("training.lr=nan", "training.lr: given NaN, should be a finite number"),
        ("training.lr=inf", "training.lr: given Infinity, should be a finite number"),
        ("training.precision=fp8", "training.precision: given \"fp8\", should be 'auto'"),
        ("cluster=3", "cluster: given 3, should be an object"),
        ("training.betas=[0.9]", "training.betas[1]: is needed"),
        ("name=a/b", 'name: given "a/b", should match pattern'),
        ("model.heads=7", "model: d_model=160"),
        (
            "model.architecture=mlp",
            "model: Input tag 'mlp' found using 'architecture' does not match",
        ),
        ("data=re_arc", "data: source re_arc needs data.path"),
    ],
)
def test_wrong_value_is_told_with_key_value_and_expectation(override: str, expected: str) -> None:
    assert expected in refusal(TrainConfig, override)


def test_list_items_are_told_by_index() -> None:
    message = refusal(PipelineConfig, "models=[champion,mlp,{architecture: champion, layers: 3}]")
    assert "models[1]: Input tag 'mlp' found using 'architecture' does not match" in message
    assert "models[2].layers: unknown key" in message


def test_nonexistent_option_lists_the_options() -> None:
    message = refusal(TrainConfig, "model=decoder_onli")
    assert "model: no option decoder_onli; options: champion, custom, decoder_only" in message


def test_group_of_another_job_is_refused() -> None:
    message = refusal(BenchmarkConfig, "model=champion")
    assert "model: no config group of this job; its groups: data" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.lr", "override 1: is not of the form key=value"),
        ("name=a(b", "name: cannot be read at character 9; a value with special characters"),
        ("training.lr=0.1,0.2", "training.lr: a job takes one value, not a sweep"),
        ("hydra.run.dir=x", "hydra.run.dir: Hydra's own settings have no effect"),
        ("name=${nothing}", "nothing"),
    ],
)
def test_what_hydra_cannot_use_is_told(override: str, expected: str) -> None:
    assert expected in refusal(TrainConfig, override)


def test_all_problems_come_at_once() -> None:
    overrides = ["model=mlp", "foo", "training.lrr=3", "training.epochs=0", "data=re_arc"]
    message = refusal(TrainConfig, *overrides)
    for key in ("model", "override 2", "training.lrr", "training.epochs", "data"):
        assert f"\n  {key}: " in message


def test_a_wrong_choice_hides_no_problem_elsewhere_and_invents_none_below_it() -> None:
    message = refusal(TrainConfig, "model=decoder_onli", "model.layers=3", "training.lrr=3")
    assert "training.lrr" in message
    assert "model.layers" not in message


def test_missing_configs_directory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("raylab.config.compose.CONFIGS", tmp_path)
    assert "run the job from a checkout" in refusal(TrainConfig)


def test_broken_yaml_is_told_with_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("raylab.config.compose.CONFIGS", tmp_path)
    (tmp_path / "train.yaml").write_text("defaults: [\n")
    assert str(tmp_path / "train.yaml") in refusal(TrainConfig)


def test_every_architecture_is_a_group_option_and_a_pipeline_default() -> None:
    assert set(config_groups(TrainConfig)["model"]) == set(MODEL_CONFIGS)
    assert PipelineConfig().models == ALL_MODELS


def test_loading_leaves_no_state_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configs = [load_config(kind, needed(kind)) for kind, _ in itertools.product(JOBS, range(2))]
    assert configs[::2] == configs[1::2]
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_is_none_is_told_with_those_there_are() -> None:
    message = refusal(TrainConfig, "training.monitor=val_grid_acuracy")
    assert 'training.monitor: given "val_grid_acuracy", should be \'val_solve_' in message
    assert "'val_grid_accuracy'" in message and "copy_rate" not in message
    assert "'solve_rate'" in refusal(EvaluateConfig, "models=[x]", "scoring.metric=val_solve_rate")


def test_the_published_quality_configuration_is_taken_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "run_quality_evaluation_cfg.yaml"
    file.write_text(
        "defaults:\n  - _self_\n"
        "prompt_cfg:\n  text: ${oc.env:PROMPT}\n"
        "exp_cfg:\n  seed: 1\n"
        "quality_eval_cfg:\n"
        "  scores_root_dir: /data/scores\n  scores_subdir: scores\n"
        "  prior_datasets:\n    - /data/prior\n"
    )
    with caplog.at_level(logging.WARNING):
        config = load_config(QualityConfig, (), file)
    assert config.quality_eval_cfg.scores_root_dir == "/data/scores"
    assert config.quality_eval_cfg.prior_datasets == ("/data/prior",)
    assert "defaults, exp_cfg, prompt_cfg" in caplog.text
    file.write_text("prompts_cfg: {}\n")
    with pytest.raises(ConfigError, match="prompts_cfg"):
        load_config(QualityConfig, (), file)
