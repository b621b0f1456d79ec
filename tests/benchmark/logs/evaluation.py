"""A script: Inspect evaluates a quiz in both formats, then is interrupted in a second one.

Samples are right in the first epoch alone; one has no score, one fails, one is cancelled.
"""

import os
import signal
import sys
from typing import Any

import anyio
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, mean, scorer
from inspect_ai.solver import solver


@scorer(metrics=[accuracy()])
def right() -> Any:
    async def score(state: Any, target: Any) -> Score:
        if state.sample_id == "unscored":
            return Score.unscored(reason="grader_failed")
        return Score(value="C" if state.epoch == 1 else "I", answer=f"A{state.epoch}")

    return score


@scorer(metrics={"tone": [mean()], "length": [mean()]})
def style() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value={"tone": 0.5, "length": True})

    return score


@solver
def failing() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        if state.sample_id == "failed":
            raise ValueError("no")
        if state.sample_id == "interrupted":
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep(60)
        return state

    return solve


def main(directory: str) -> None:
    # A process in the background may have been started without.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for kind in ("eval", "json"):
        for names, epochs in (("a", "unscored", "failed"), 2), (("a", "interrupted"), 1):
            eval(
                Task(
                    name="quiz",
                    dataset=[Sample(id=n, input=f"What is {n}?", target="A") for n in names],
                    solver=failing(),
                    scorer=[right(), style()],
                    epochs=epochs,
                ),
                model="mockllm/model",
                log_dir=f"{directory}/{kind}/{epochs}",
                log_format=kind,
                fail_on_error=False,
                max_samples=1,
                display="none",
            )


if __name__ == "__main__":
    main(sys.argv[1])
