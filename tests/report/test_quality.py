from raylab.report.quality import log_lines
from tests.quality.qualities import figure, quality

FIGURES = {
    "difficulty": figure(0.125, (0.0625, 0.25)),
    "novelty": figure(None, reason="no prior_datasets are configured"),
}


def test_users_find_models_and_metrics_by_their_lines():
    lines = list(log_lines(quality(figures=FIGURES)))
    assert lines == [
        "Model 'champion' mean accuracy over 2 generations: 0.8585",
        "Model 'small' mean accuracy over 1 generation: 0.8159",
        "Benchmark difficulty: 0.1250",
        "Benchmark novelty: not computed, no prior_datasets are configured",
    ]
    flat = log_lines(quality(models={"m": 0.75}, generations={}, figures={}))
    assert list(flat) == ["Model 'm' mean accuracy: 0.7500"]
    counted = log_lines(quality(models={"m": 0.75}, file_counts={"m": 4}, generations={}))
    assert next(counted) == "Model 'm' mean accuracy over 4 JSON files: 0.7500"
