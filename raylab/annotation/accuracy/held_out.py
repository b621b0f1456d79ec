"""Gold that the prompts give away, which measures no accuracy."""

from collections.abc import Iterable, Iterator

from raylab.annotation.outcome import Outcome
from raylab.codebook import PromptSet


def held_out(outcomes: Iterable[Outcome], prompts: PromptSet) -> Iterator[Outcome]:
    """Yields outcomes, those of systems that the prompts name without their gold label.

    Args:
        outcomes: The outcomes of a run.
        prompts: The prompts of the run.
    """
    for outcome in outcomes:
        told = prompts.open_book and outcome.meta.get("open_book") is True
        yield outcome.model_copy(update={"gold_label": None}) if told else outcome


def is_open_book(outcome: Outcome) -> bool:
    """Returns True for an outcome that `held_out` left without the label of its gold."""
    return outcome.gold is not None and outcome.gold_label is None
