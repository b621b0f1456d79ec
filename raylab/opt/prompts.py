"""The prompts of the taxonomy, from the files in `prompts/`, with the schemas of their replies."""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from raylab.codebook import PromptSet
from raylab.llm.prompts import PromptFile, Schema, read_prompt
from raylab.opt.answers import CODE_ANSWERS, SHORT_WARNING, WORD_ANSWERS

FOLDER: Traversable = resources.files("raylab.opt") / "prompts"
LONGEST = 100_000
"""Longest description in characters: about 25,000 tokens of prose."""
LONGEST_FOR_WORDS = 1_500
"""The same for models that answer in words: the embedded one has 1,536 tokens in total."""
SHOWN = 4_000
"""Characters of a rationale or report shown to another model; the rest is cut, with a note."""
SHOWN_FOR_WORDS = 200
"""The same for models that answer in words."""
STYLES = ("minimal", "maximal", "word")
"""The styles that a configuration may choose; `word` asks for one plain word from a list, for
models too small for codes."""


def prompt_set(style: str) -> PromptSet:
    """Returns the prompts of a style.

    Args:
        style: One of `STYLES`.
    """
    words = style == "word"
    suffix = "_word" if words else ""
    return PromptSet(
        classify=load_prompt(f"classify_{style}"),
        evaluate=load_prompt(f"evaluate{suffix}"),
        adjudicate=load_prompt(f"adjudicate{suffix}"),
        repair=load_prompt("repair"),
        form=WORD_ANSWERS if words else CODE_ANSWERS,
        open_book=not words,
        warning=SHORT_WARNING if words else None,
    )


def prompt_catalogue() -> dict[str, PromptFile]:
    """Returns every prompt by its hash."""
    prompts = [load_prompt(name) for name in _names()]
    return {prompt.hash: prompt for prompt in prompts}


@cache
def load_prompt(name: str) -> PromptFile:
    """Reads the prompt of a file in `prompts/`.

    Raises:
        DataError: The file does not begin with its version.
    """
    for_words = name.endswith("_word")
    return read_prompt(
        FOLDER,
        name,
        _schema(name),
        LONGEST_FOR_WORDS if for_words else LONGEST,
        SHOWN_FOR_WORDS if for_words else SHOWN,
    )


def _names() -> list[str]:
    names = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".j2"))
    return [name.removesuffix(".j2") for name in names if not name.startswith("_")]


def _schema(name: str) -> Schema:
    form = WORD_ANSWERS if name.endswith("_word") else CODE_ANSWERS
    match name.partition("_")[0]:
        case "classify":
            return form.label.schema_asked()
        case "evaluate":
            return form.report.schema_asked()
        case "adjudicate":
            return form.choice.schema_asked()
        case _:
            return {}
