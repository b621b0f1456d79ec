import json
from pathlib import Path

import pytest
import torch

from tests.conftest import RunScript
from tests.log_lines import lines_of

ARCHITECTURES = ("champion", "decoder_only")
MODELS = ",".join(
    f"{{architecture: {architecture}, d_model: 16, d_ff: 32, heads: 2}}"
    for architecture in ARCHITECTURES
)
TINY = [
    "name=tiny",
    f"models=[{MODELS}]",
    "data.every=40",
    "generations=[published,1]",
    "prior.source=arc_agi_2",
    "prior.subset=evaluation",
    "prior.every=40",
    "cluster.workers=1",
    "cluster.cpus_per_worker=1",
    "training.epochs=1",
    "pictures=2",
    "fine_tuning={model: champion, tasks: [007bbfb7, 0520fde7], training: {epochs: 1}}",
]

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_pipeline_ends_with_a_report_and_a_second_run_does_what_is_missing(
    run_script: RunScript, tmp_path: Path
):
    def pipeline(*arguments: str) -> str:
        done = run_script("pipeline", f"storage={tmp_path}", *TINY, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run = tmp_path / "tiny"
    first = pipeline()
    assert first.rstrip().endswith(f"report {run}/report.html")

    files = {path: path.stat().st_mtime_ns for path in run.glob("scores/*/*/*.json")}
    # The drawn split validates on 2 of the 10 tasks; 2 models, 2 generations.
    assert len(files) == 2 * 2 * 2
    # 3 tasks of the prior, as published.
    assert len(list(run.glob("prior/*/published/*.json"))) == 3 * 2
    quality = json.loads((run / "quality.json").read_text())
    assert f"Benchmark difficulty: {quality['figures']['difficulty']['value']:.4f}" in first
    assert quality["models"].keys() == {*ARCHITECTURES}
    page = (run / "report.html").read_text()
    assert "champion-tuned before → after fine-tuning" in page
    assert (
        f"{quality['figures']['separability']['value']:.3f}" in page
        and "baseline: copy the source" in page
    )
    diagnosis = json.loads((run / "diagnosis.json").read_text())
    assert (diagnosis["models"], diagnosis["items"]) == (2, 2)
    assert 'href="diagnosis.html"' in page and (run / "diagnosis.html").exists()

    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps(record | {"finished": None}))
    lost = sorted(files)[0]
    lost.unlink()
    second = lines_of(pipeline("resume=true", "log=json"))
    assert {line["run_id"] for line in second} == {record["id"]}
    trainings = {line["training"]: line["training_id"] for line in second if "training_id" in line}
    for name, id_ in trainings.items():
        (checkpoint,) = run.glob(f"{name}/checkpoints/*/checkpoint.ckpt")
        assert torch.load(checkpoint, weights_only=True)["raylab"]["run_id"] == id_
    finished = [line for line in second if "nothing is left to do" in line["message"]]
    assert [line["training"] for line in finished] == list(trainings)
    assert len(finished) == 3
    after = {path: path.stat().st_mtime_ns for path in run.glob("scores/*/*/*.json")}
    assert after.keys() == files.keys()
    assert {path for path in files if after[path] != files[path]} == {lost}
    assert json.loads((run / "quality.json").read_text())["models"] == quality["models"]
