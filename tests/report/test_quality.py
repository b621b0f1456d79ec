from raylab.report.quality import log_lines
from tests.quality.qualities import quality


def test_users_find_models_and_metrics_by_their_lines():
    first, _, difficulty, *_, novelty = log_lines(quality())
    assert first == "Model 'champion' mean accuracy over 2 generations: 0.8585"
    assert difficulty == "Benchmark difficulty: 0.1415"
    assert novelty == "Benchmark novelty: not computed, no prior benchmark was given"
    flat = log_lines(quality(models={"m": 0.75}, generations={}, figures={}))
    assert list(flat) == ["Model 'm' mean accuracy: 0.7500"]
    counted = log_lines(quality(models={"m": 0.75}, file_counts={"m": 4}, generations={}))
    assert next(counted) == "Model 'm' mean accuracy over 4 JSON files: 0.7500"
