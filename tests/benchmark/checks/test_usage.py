"""What models took, by the logs that say so."""

import pandas as pd

from raylab.benchmark.checks.usage import measure_usage
from raylab.benchmark.responses import Responses, make_responses

NAN = float("nan")


def responses(logs: dict[str, list[object]]) -> Responses:
    """Four models with two items each; `d` is right on none, `a` and `b` on both, `c` on one."""
    scores = {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 0.0), "d": (0.0, 0.0)}
    rows = [(m, n, score) for m, own in scores.items() for n, score in enumerate(own)]
    frame = pd.DataFrame(rows, columns=["model", "item", "score"])
    return make_responses(frame, logs=pd.DataFrame(logs))


def test_what_a_model_took_is_by_response_and_unbeaten_where_no_cheaper_one_is_as_good() -> None:
    # `a` has two logs; one of `d` does not say what it cost.
    logs: dict[str, list[object]] = {
        "model": ["a", "a", "b", "c", "d", "d"],
        "sampled": [True] * 6,
        "cost": [1.0, 3.0, 8.0, 1.0, 1.0, NAN],
        "tokens": [100.0, 100.0, 500.0, 50.0, 10.0, 10.0],
        "seconds": [NAN] * 6,
    }
    usage = measure_usage(responses(logs))
    assert [(each.model, each.cost, each.tokens, each.unbeaten) for each in usage] == [
        ("a", 2.0, 100.0, True),
        ("b", 4.0, 250.0, False),
        ("c", 0.5, 25.0, True),
        ("d", None, 10.0, False),
    ]
    assert all(each.seconds is None for each in usage)


def test_logs_that_say_nothing_have_no_usage() -> None:
    logs = {"model": ["a"], "sampled": [True], "cost": [NAN], "tokens": [NAN], "seconds": [NAN]}
    assert (
        measure_usage(responses(logs)) == measure_usage(make_responses(responses({}).table)) == ()
    )
