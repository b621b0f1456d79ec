"""Composition and validation of every job's configuration, of hostile ones too."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from raylab.arc.config.jobs import EvaluateConfig, TrainConfig, TuneConfig
from raylab.arc.config.models import ALL_MODELS, MODEL_CONFIGS, ChampionConfig, DecoderOnlyConfig
from raylab.arc.config.search import Domain
from raylab.benchmark.config import QualityConfig
from raylab.core.config.base import JobConfig
from raylab.core.config.compose import CONFIGS, as_yaml, config_groups, load_config
from raylab.core.config.schema import MAX_PROBLEMS
from raylab.core.errors import ConfigError
from raylab.label.config.jobs import AnnotateConfig, ConcludeConfig, ReviewConfig
from raylab.together.config import BenchmarkConfig, PipelineConfig, ReportConfig
from tests.fuzzing import COUNT, try_altered
from tests.job_configs import JOB_CONFIGS
from tests.memory import memory

JOBS = JOB_CONFIGS
NEEDED: dict[type[JobConfig], list[str]] = {
    EvaluateConfig: ["models=[a.ckpt]"],
    ReportConfig: ["runs=[a]"],
    ReviewConfig: ["name=systems"],
    ConcludeConfig: ["run=systems"],
}
"""Overrides without which a job has no configuration."""
SHIPPED: dict[type[JobConfig], set[str]] = {
    TuneConfig: {"space"},
    EvaluateConfig: {"models"},
    ReportConfig: {"runs"},
    ReviewConfig: {"name"},
    ConcludeConfig: {"run"},
    AnnotateConfig: {"llm"},
}
"""Sections that the command line or a YAML file sets."""
GROUPS = [
    (kind, group, option)
    for kind in JOBS
    for group, options in config_groups(kind).items()
    for option in options
]
ROLES = ("annotators.0", "annotators.1", "evaluator", "adjudicator")
OPTIONS = {
    "arc_json": ["data.path=tasks"],
    "re_arc": ["data.path=tasks.zip"],
    "published": ["data.path=tasks.zip"],
    "hour": ["stages.0.data.path=tasks.zip"],
    "custom": ["model.target=package.module:Class"],
    "openai": [f"llm.{role}.model=m" for role in ROLES],
}
"""What the option of a group needs."""


def load(kind: type[JobConfig], *overrides: str) -> Any:
    return load_config(kind, [*NEEDED.get(kind, []), *overrides])


def refusal(kind: type[JobConfig], *overrides: str, file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(kind, overrides, file)
    return str(caught.value)


def assert_contains(values: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_contains(values[key], value)
        elif isinstance(value, list) and isinstance(value[0], dict):
            for loaded, wanted in zip(values[key], value, strict=True):
                assert_contains(loaded, wanted)
        else:
            assert values[key] == value


@pytest.mark.parametrize("kind", JOBS)
def test_a_shipped_configuration_is_the_models_default_and_loads_back_when_printed(
    kind: type[JobConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(kind)
    # The default of the storage is relative.
    assert config.model_dump(exclude_defaults=True).keys() - {"storage"} == SHIPPED.get(kind, set())
    named = load(kind, "name=1_000")
    assert kind.model_validate(yaml.safe_load(as_yaml(named))) == named
    # The second time, as nothing of the first stays behind.
    assert load(kind) == config
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "group", "option"), GROUPS)
def test_every_group_option_loads_and_is_chosen(
    kind: type[JobConfig], group: str, option: str
) -> None:
    config = load(kind, f"{group}={option}", *OPTIONS.get(option, []))
    text = (CONFIGS / group / f"{option}.yaml").read_text()
    sets = yaml.safe_load(text)
    sets.pop("defaults", None)
    assert_contains(
        config.model_dump(mode="json"), sets if "@package _global_" in text else {group: sets}
    )


def test_no_shipped_yaml_is_unreachable() -> None:
    reachable = {CONFIGS / f"{kind.job}.yaml" for kind in JOBS}
    reachable |= {CONFIGS / group / f"{option}.yaml" for _, group, option in GROUPS}
    assert set(CONFIGS.rglob("*.yaml")) == reachable
    assert set(config_groups(TrainConfig)["model"]) == set(MODEL_CONFIGS)
    assert PipelineConfig().models == ALL_MODELS
    assert load(PipelineConfig, "scale=demo").prior is None


def test_an_equal_model_is_trained_with_the_next_seed() -> None:
    models = "models=[champion,{architecture: champion, d_model: 64},champion,recursive]"
    trainings = load(PipelineConfig, models, "training.seed=5").trainings
    assert {name: training.seed for name, (_, training) in trainings.items()} == {
        "champion-1": 5, "champion-2": 5, "champion-3": 6, "recursive": 5,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="=champion is none of champion-1, "):
        load(PipelineConfig, models, "fine_tuning={model: champion, tasks: [a]}")


def test_overrides_mean_what_hydra_users_know_and_reach_keys_that_no_yaml_names() -> None:
    config = load(TrainConfig, "training.lr=0.001", "training.objective.w_cell=1", "name=night")
    assert (config.training.lr, config.training.objective.w_cell) == (0.001, 1.0)
    assert config.name == "night"
    with pytest.raises(ValidationError, match="frozen"):
        config.training.epochs = 3
    assert load(TrainConfig, "model.layers=2", "model=decoder_only").model == DecoderOnlyConfig(
        layers=2
    )
    assert load(TrainConfig, "+training.epochs=3").training.epochs == 3
    assert load(TrainConfig, "++training.epochs=3").training.epochs == 3
    assert load(TrainConfig, "~model").model == TrainConfig().model
    assert "training.epochs" in refusal(TrainConfig, "~training.epochs")


def test_jobs_that_start_at_once_in_threads_of_one_process_are_configured_alike() -> None:
    together = threading.Barrier(4)

    def compose(lr: float) -> float:
        together.wait()
        return load(TrainConfig, "training=minutes", f"training.lr={lr}").training.lr

    rates = [0.001, 0.002, 0.003, 0.004]
    with ThreadPoolExecutor(len(rates)) as pool:
        assert list(pool.map(compose, rates)) == rates


def test_sections_of_a_file_replace_the_jobs_own(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text("model: {architecture: decoder_only, layers: 2}\ntraining: {lr: 0.01}\n")
    config = load_config(TrainConfig, ["training.epochs=7"], file)
    assert config.model == DecoderOnlyConfig(layers=2)
    assert (config.training.lr, config.training.epochs) == (0.01, 7)
    assert load_config(TrainConfig, ["model=champion"], file).model == ChampionConfig()
    assert "absent.yaml cannot be read" in refusal(TrainConfig, file=tmp_path / "absent.yaml")


def test_values_are_taken_as_they_are_typed() -> None:
    space = load(
        TuneConfig, "space.training.lr.log_uniform=null", "space.training.lr.choice=[0.001,0.01]"
    ).space
    assert space.training["lr"] == Domain(choice=(0.001, 0.01))
    models = load(PipelineConfig, "models=[decoder_only,{architecture: champion, d_model: 128}]")
    assert models.models == (DecoderOnlyConfig(), ChampionConfig(d_model=128))
    config = load(TrainConfig, "data.tasks=[45737921,007bbfb7]", "name=20260101")
    assert (config.data.tasks, config.name) == (("45737921", "007bbfb7"), "20260101")
    assert load(TrainConfig, "name=2026_11_26").name == "2026_11_26"
    # A key that is a keyword of Python.
    review = load(ReviewConfig, "import=/a.jsonl")
    assert review.import_ == Path("/a.jsonl")
    assert yaml.safe_load(as_yaml(review))["import"] == "/a.jsonl"


def test_the_evaluator_alone_needs_no_other_model_or_endpoint() -> None:
    alone = ["llm=openai", "llm.evaluator.model=judge"]
    # The key of annotators on an endpoint of their own is not asked for.
    of_others = ["+llm.endpoints.other={}", "llm.annotators.0.endpoint=other"]
    llm = load(AnnotateConfig, *alone, *of_others, "protocol.stages=evaluate").llm
    assert {role: model.endpoint for role, model in llm.models.items()} == {"evaluator": "default"}
    assert load(AnnotateConfig, "protocol.adjudicator=human").llm.adjudicator is None
    missing = refusal(AnnotateConfig, *alone)
    for key in ("annotators[0]", "annotators[1]", "adjudicator"):
        assert f"llm.{key}.model: is needed" in missing


def test_the_fewest_and_the_most_workers_are_two_numbers() -> None:
    pair, fixed = (
        load_config(TrainConfig, [f"cluster.workers={workers}"]).cluster
        for workers in ("[1,8]", "[3,3]")
    )
    assert (pair.fewest_workers, pair.most_workers) == (1, 8) and not pair.is_this_process
    assert fixed.workers == 3


def test_arc_prizes_scoring_is_of_the_published_tasks_unless_others_are_named() -> None:
    chosen = ["models=[x]", "scoring=arc"]
    assert load_config(EvaluateConfig, chosen).generations == ("published",)
    assert load_config(EvaluateConfig, [*chosen, "generations=[1]"]).generations == (1,)
    assert load_config(EvaluateConfig, chosen[:1]).generations == ("published", 1, 2)


def test_paths_become_absolute_and_uris_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ["data.path=a.zip", "data.split=s/b.json", "data.taxonomy=../t.json"]
    config = load(TrainConfig, "data=re_arc", *paths)
    assert config.data.path == str(tmp_path / "a.zip")
    assert config.data.split == str(tmp_path / "s" / "b.json")
    assert config.data.taxonomy == str(tmp_path.parent / "t.json")
    assert config.storage == str(tmp_path / "runs")
    assert TrainConfig(storage="~/runs").storage == str(Path.home() / "runs")
    uri = "s3://bucket/runs?endpoint_override=127.0.0.1:9000&scheme=http"
    assert load(TrainConfig, f"storage='{uri}'").storage == uri


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
    assert "prompts_cfg" in refusal(QualityConfig, file=file)


MISTAKES: dict[type[JobConfig], list[tuple[str, str]]] = {
    TrainConfig: [
        ("training.lrr=3", "training.lrr: unknown key; did you mean training.lr?"),
        ("lr=3", "lr: unknown key; did you mean training.lr?"),
        *(
            (f"cluster.workers={workers}", "cluster.workers: should be a number above 0, or the")
            for workers in ("[8,2]", "[0,2]", "many")
        ),
        ("training.objective.qqq=1", "keys of training.objective: w_cell, w_tol, w_ex"),
        ("training.epochs=three", 'training.epochs: given "three", should be a whole number'),
        ("training.epochs='3'", 'training.epochs: given "3", should be a whole number'),
        ("training.epochs=true", "training.epochs: given true, should be a whole number"),
        ("resume=1", "resume: given 1, should be true or false"),
        ("training.lr=nan", "training.lr: given NaN, should be a finite number"),
        ("model.heads=7", "model: d_model=160"),
        ("training.seed=18446744073709551616", "training.seed: given 18446744073709551616"),
        ("model.architecture=mlp", "model: Input tag 'mlp' found using 'architecture' does not"),
        ("data=re_arc", "data: source re_arc needs data.path"),
        ("model=decoder_onli", "model: no option decoder_onli; options: champion, custom, decoder"),
        ("training.lr", "override 1: is not key=value"),
        ("name=a(b", "name: cannot be read at character 9; a value with special characters"),
        ("training.lr=0.1,0.2", "training.lr: a job takes one value, not a sweep"),
        ("name=${nothing}", "nothing"),
        ("storage='s3://key:x@bucket'", "storage: a URI must carry no password or key"),
        ("storage='s3://b/a#1'", "storage: a # in a URI is written %23"),
        ("storage=s3:/x", "storage: a URI has two slashes after its scheme, as in s3://bucket/"),
        (
            "name=1e5",
            "name: is read as the number 100000.0: put the text in quotes, on the command",
        ),
        ("data.tasks=[5117e062]", "data.tasks[0]: is read as the number 5.117e+65: put the text"),
        ("training.epochs=1_0", 'training.epochs: given "1_0", should be a whole number'),
    ],
    TuneConfig: [
        ("space.training.lr.uniform=[1,2]", "space.training.lr: needs exactly one of"),
        ("space.model.champion.heads.choice=[4,3]", "a multiple of heads=3"),
        ("space.training.lr.log_uniform=[0.1,0.01]", "0.1 should be less than 0.01"),
    ],
    AnnotateConfig: [
        ("llm.annotators.0.endpoint=azure", "annotators.0.endpoint azure is none of endpoints: d"),
        ("+llm={budget: {tokens: 5}, evaluator: {max_tokens: null}}", "set evaluator.max_tokens"),
        ("llm.evaluator.extra={api_key: x}", "llm.evaluator.extra: api_key is archived with the"),
        ("llm.evaluator.extra={service_tier: flex}", "service_tier is set by llm.lane"),
        ("llm.annotators.1.seed=1", "annotators.0 and annotators.1 are the same call"),
        ("llm.endpoints.default.base_url=localhost:8000", "should start with http:// or https://"),
        ("llm.endpoints.default.api_key_env=sk-0123", "the name of an environment variable"),
        ("llm.annotators.1.model=Final", "final names the logs of the final codes"),
        ("~llm.adjudicator", "protocol.stages=all needs llm.adjudicator: configure"),
    ],
    ReviewConfig: [
        ("port=8700", "needs name=, the annotation run whose cases are reviewed"),
        ("name=a export=a.jsonl import=a.jsonl", "takes export= or import=, not both"),
        ("name=a reviewer=Ada", "reviewer= goes with import="),
        ("name=a export='s3://bucket/review.jsonl'", "export: should be the path of a local file"),
    ],
    ConcludeConfig: [
        ("", "needs run=, an annotation run, or table=, labels made elsewhere"),
        ("run=a people=x", "models, people, chance and encoding are of a table: give table="),
        ("table=a.csv models=x", "table= needs models= and people=, the columns with their labels"),
        ("table=a.csv models=[x,y] people=y", "models and people both name y"),
        ("run=a by=team outcome=days", "by= compares groups, and covariates= and outcome= regress"),
    ],
    ReportConfig: [
        ("", "needs either runs=[...]"),
        ("runs=[a] archive=/a.db", "archive= goes with drift=true"),
    ],
    PipelineConfig: [
        ("models=[champion,{architecture: champion, layer: 3}]", "models[1].layer: un")
    ],
    EvaluateConfig: [
        ("models=[x] generations=[4294967296]", "generations[0]"),
    ],
    BenchmarkConfig: [("part=arc", "part=arc and stages go together: choose speedrun=hour")],
}


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [(kind, *mistake) for kind, mistakes in MISTAKES.items() for mistake in mistakes],
)
def test_a_mistake_is_told_with_key_value_and_expectation(
    kind: type[JobConfig], overrides: str, message: str
) -> None:
    assert message in refusal(kind, *re.split(r" (?=[\w.]+=)", overrides) if overrides else ())


def test_a_key_of_another_architecture_lists_the_keys_of_this_one() -> None:
    message = refusal(TrainConfig, "model=decoder_only", "model.encoder_dropout=0.1")
    assert "a key of model.architecture=champion, model.architecture=recursive alone" in message
    for key in DecoderOnlyConfig.model_fields:
        assert re.search(rf"\b{key}\b", message)
    assert "encoder_layers" not in message


def test_all_problems_come_at_once_and_a_wrong_choice_invents_none_below_it() -> None:
    overrides = ["model=mlp", "model.layers=3", "foo", "training.lrr=3", "data=re_arc"]
    message = refusal(TrainConfig, *overrides)
    for key in ("model", "override 3", "training.lrr", "data"):
        assert f"\n  {key}: " in message
    assert "model.layers" not in message


def test_absent_and_broken_shipped_files_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("raylab.core.config.compose.CONFIGS", tmp_path)
    assert "run the job from a whole checkout" in refusal(TrainConfig)
    (tmp_path / "train.yaml").write_text("defaults: [\n")
    assert str(tmp_path / "train.yaml") in refusal(TrainConfig)


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"data.tasks=[{LONG}]", "data.tasks: cannot be read"),
        ("a" * 5000 + "=1", f"{'a' * 200}...: unknown key"),
        ("data.tasks=" + "[" * 2000, "data.tasks: cannot be read at character 2012"),
        ("a" + ".a" * 3000 + "=1", "recursion"),
    ],
)
def test_a_huge_override_is_refused_in_few_words(override: str, message: str) -> None:
    refused = refusal(TrainConfig, override)
    assert message in refused and len(refused) < 2000


REFERENCES = "".join(
    [f"a0: {'x' * 100}\n", *(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 30))]
)
"""Texts that double thirty times when they are resolved."""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (REFERENCES, "is not read in a file: write the value itself"),
        ("- 1", "no mapping"),
        ("training: {epochs: 3\n", "file.yaml: line 2, column 1: "),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(content)
    with memory():
        refused = refusal(TrainConfig, file=file)
    assert reason in refused and len(refused) < 2000


def test_altered_files_give_configurations_or_typed_errors(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"

    def read(content: bytes) -> object:
        file.write_bytes(content)
        return load_config(TuneConfig, [], file)

    whole = as_yaml(load_config(TuneConfig)).encode()
    try_altered([whole, b"training: {epochs: 3}\nname: 'a'\n"], read, ConfigError, COUNT // 5)


def test_of_many_unknown_keys_few_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("".join(f"s{number}: {{a: 1}}\n" for number in range(2000)))
    refused = refusal(TrainConfig, file=file)
    assert refused.count("unknown key") == MAX_PROBLEMS and "and 1,980 more\n" in refused


SECRETS: dict[type[JobConfig], list[str]] = {
    TrainConfig: [
        "storage='s3://key:slash/hunter2@bucket/runs'",
        "storage='s3://bucket/runs?secret%5Fk%65y=hunter2'",
        "storage='s3://key%3Ahunter2%40bucket/runs'",
        "model.architecture='https://u:hunter2@host'",
        "name=hunter2(b",
        "hunter2",
        "sk hunter2=1",
    ],
    AnnotateConfig: [
        "llm.endpoints.default.base_url='u:hunter2@host'",
        "llm.endpoints.default.base_url='https://host/v1?pass%77ord=hunter2'",
        "llm.endpoints.default.api_key_env=sk-hunter2",
        "llm.endpoints.default.limits='host/v1?secret_key=hunter2'",
        "llm.evaluator.extra={api_key: hunter2}",
        "archive='postgresql://user%3Ahunter2@host/db'",
    ],
    PipelineConfig: ["take=['s3://key:hunter2@bucket']"],
}


@pytest.mark.parametrize(
    ("kind", "override"),
    [(kind, override) for kind, overrides in SECRETS.items() for override in overrides],
)
def test_no_secret_is_repeated(kind: type[JobConfig], override: str) -> None:
    assert "hunter2" not in refusal(kind, override)
