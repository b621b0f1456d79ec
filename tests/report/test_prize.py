from raylab.arc.records import EvaluationMetrics
from raylab.config.arc import ScoringConfig
from raylab.report.prize import accuracy_table
from tests.report.pages import rows_of


def test_accuracies_stand_by_model_and_generation():
    accuracies = {
        "base": {"published": 0.5, "seed-1": 0.25},
        "big": {"published": 1.0, "seed-1": 0.0},
    }
    rules = {"copy_source": {"published": 0.125, "seed-1": 0.25}}
    metrics = EvaluationMetrics(metric="solve_rate", models=accuracies, rules=rules)
    table = accuracy_table(metrics, ScoringConfig(unit="group"))
    rows = rows_of(table)
    assert table.title == "Mean solve_rate of a group"
    assert ["model", "published", "seed-1"] in rows
    assert ["base", "50.00 %", "25.00 %"] in rows
    assert ["big", "100.00 %", "0.00 %"] in rows
    assert ["rule: copy the source", "12.50 %", "25.00 %"] in rows
