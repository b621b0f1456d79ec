from raylab.report.quality import figures_table, log_lines
from tests.quality.qualities import figure, quality
from tests.report.pages import rows_of

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


def test_quality_that_was_not_computed_says_why():
    rows = rows_of(figures_table(quality(figures=FIGURES)))
    assert ["difficulty", "0.1250", "-", "0.0625 to 0.2500", ""] in rows
    assert ["novelty", "not computed", "-", "-", "no prior_datasets are configured"] in rows
    without = quality(figures={"difficulty": figure(0.125, no_interval="bootstrap=0")})
    assert ["difficulty", "0.1250", "-", "-", "bootstrap=0"] in rows_of(figures_table(without))
