import json
from pathlib import Path
from typing import Any

import pytest

from jobs.quality import run as run_quality
from raylab.benchmark.config import Layout, QualityConfig, QualityEvalConfig
from raylab.benchmark.figures.record import FileCounts, Quality
from raylab.benchmark.logs import reading
from raylab.benchmark.logs.trees import configured_trees, find_trees
from raylab.benchmark.run import measure_trees
from raylab.core.config.base import ClusterConfig
from raylab.core.config.compose import load_config
from raylab.core.entrypoint import run_job
from raylab.core.errors import ConfigError, DataError
from raylab.core.runs.run import Run
from raylab.core.workers import Workers
from tests.benchmark.trees import SCORES, measure, write_scores
from tests.log_lines import id_in, lines_of


def test_a_tree_is_measured_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    root = write_scores(tmp_path / "data" / "scores" / "run7", SCORES)
    (root / "m1" / "g1" / "broken.json").write_text("{")
    prior = write_scores(tmp_path / "prior", SCORES)
    monkeypatch.setenv("BASE_ARTIFACTS_DIR", str(tmp_path / "data"))
    priors = QualityEvalConfig(prior_datasets=(str(prior),))
    run = measure(tmp_path, run_id="run7", bootstrap=100, quality_eval_cfg=priors)
    quality = run.read_record(Quality)
    assert quality is not None
    assert quality.models == {"m1": pytest.approx(0.8), "m2": pytest.approx(0.3)}
    assert quality.files == FileCounts(read=17, skipped=1)
    assert run.is_finished
    lines = capsys.readouterr().out.splitlines()
    for line in (
        f"{root}: layout generations, every model has the same 2 subdirectories",
        "Model 'm1' mean accuracy over 2 generations: 0.8000",
        "Benchmark difficulty: 0.2000",
        "Benchmark novelty: 0.0000",
        "17 files read, 1 skipped",
    ):
        assert line in lines


def test_a_tree_that_is_slow_to_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read_files, failures = reading.read_files, [OSError("timed out")] * 3

    def read(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return read_files(*arguments)

    monkeypatch.setattr(reading, "read_files", read)
    root = write_scores(tmp_path / "scores", {**SCORES, "m3": {"g1": [0.5]}})
    trees, workers = find_trees(str(root), [], Layout.AUTO), Workers(ClusterConfig())
    with pytest.raises(DataError, match=r"^the models of .* model m3 has 1 of 2"):
        measure_trees(trees, QualityConfig(bootstrap=0), workers)
    failures += [OSError("timed out")] * 4
    with pytest.raises(DataError, match=r"scores cannot be read, after retries: timed out"):
        measure_trees(trees, QualityConfig(bootstrap=0), workers)


def test_the_job_tells_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = write_scores(tmp_path / "scores", SCORES)
    arguments = [f"quality_eval_cfg.scores_root_dir={root}", f"storage={tmp_path}", "bootstrap=0"]
    with pytest.raises(SystemExit) as ended:
        run_job(QualityConfig, None, run_quality, [*arguments, "name=measured", "log=json"])
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    # The tree is looked at before there is a run.
    _, *lines = lines_of(out)
    told = {(line["run_id"], line["run"], line["job"]) for line in lines}
    assert told == {(id_in(tmp_path / "measured"), "measured", "quality")}
    (table,) = (line for line in lines if line["message"] == "Benchmark quality")
    quality = json.loads((tmp_path / "measured" / "quality.json").read_text())
    assert all(table[key] == quality[key] for key in ("figures", "models"))


@pytest.mark.parametrize(
    ("base", "root", "keys", "message"),
    [
        (None, None, {"run_id": "r"}, "BASE_ARTIFACTS_DIR is not set"),
        ("/data", None, {}, "run_id is not set"),
        (None, "missing", {}, "missing is not a directory of scores"),
        (None, "scores", {"strict": True}, "1 score file cannot be used"),
    ],
)
def test_what_cannot_be_measured_is_refused_and_leaves_no_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: str | None,
    root: str | None,
    keys: dict[str, Any],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BASE_ARTIFACTS_DIR", raising=False)
    if base:
        monkeypatch.setenv("BASE_ARTIFACTS_DIR", base)
    (write_scores(tmp_path / "scores", SCORES) / "m1" / "g1" / "broken.json").write_text("{")
    settings = QualityEvalConfig(scores_root_dir=root)
    config = QualityConfig(quality_eval_cfg=settings, storage=str(tmp_path / "runs"), **keys)
    with pytest.raises((ConfigError, DataError), match=message):
        run_quality(config)
    assert [path.name for path in tmp_path.iterdir()] == ["scores"]


VECTOR = """
target_data: {scores_root_dir: ROOT, capabilities_dir: /data/math}
metrics_to_compute: [difficulty, separability, consistency, novelty, mdm, pad]
reference_datasets:
  - name: MATH-500
    path: null
    scores_dir: null
    dataloader: {type: huggingface, dataset_name: HuggingFaceH4/MATH-500, split: test}
  - {name: MATH-Hard, scores_dir: HARD}
embedding_backend: openai
pad_classifier: LogisticRegression
prompt_cfg: {sys_msg: Compute benchmark quality metrics.}
defaults: [_self_]
"""


def test_vectors_configuration_file_is_measured_as_by_its_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    root = write_scores(tmp_path / "scores", SCORES)
    # Pooled over their files, as its script does: m1 (.2 + .2 + .8) / 3, not .5.
    prior = {"m1": {"g1": [0.2, 0.2], "g2": [0.8]}, "m2": {"g1": [0.1], "g2": [0.1]}}
    write_scores(root / "MATH-500", prior)
    write_scores(tmp_path / "hard", prior)
    file = tmp_path / "vector.yaml"
    file.write_text(VECTOR.replace("ROOT", str(root)).replace("HARD", str(tmp_path / "hard")))
    with pytest.raises(SystemExit) as ended:
        run_job(
            QualityConfig, None, run_quality, ["--config", str(file), f"storage={tmp_path}/runs"]
        )
    assert ended.value.code == 0
    (run,) = (tmp_path / "runs").iterdir()
    quality = Run.at(run).read_record(Quality)
    assert quality is not None
    assert quality.models == {"m1": pytest.approx(0.8), "m2": pytest.approx(0.3)}
    assert {place: accuracies["m1"] for place, accuracies in quality.priors.items()} == {
        str(root / "MATH-500"): pytest.approx(0.4),
        str(tmp_path / "hard"): pytest.approx(0.4),
    }
    assert quality.figures["novelty"].value == 0.0
    out = capsys.readouterr().out
    for name in ("mdm", "pad"):
        assert f"Benchmark {name}: not computed, raylab has no such figure" in out
    assert "embedding_backend, pad_classifier, prompt_cfg" in caplog.text


def test_a_reference_dataset_needs_scores_only_for_novelty_and_no_list(tmp_path: Path):
    root = write_scores(tmp_path / "scores", SCORES)
    data = [f"target_data.scores_root_dir={root}", "reference_datasets={}"]
    config = load_config(QualityConfig, data)
    with pytest.raises(ConfigError, match=r"reference_datasets\[0\]: needs scores_dir"):
        configured_trees(config)
    config = config.model_copy(update={"metrics_to_compute": ("difficulty",)})
    assert [tree.location for tree in configured_trees(config)] == [str(root)]
