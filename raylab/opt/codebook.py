"""The Operational Premise Taxonomy as a codebook, with its prompts from the files in `prompts/`."""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from raylab.codebook import (
    ChoiceReply,
    Codebook,
    Label,
    LabelReply,
    PromptSet,
    ReplyModel,
    ReportReply,
)
from raylab.llm.prompts import PromptFile, read_prompt
from raylab.opt.agreement import load_distance
from raylab.opt.answers import CODE_ANSWERS, CRITERIA, EXECUTION, WORD_ANSWERS
from raylab.opt.code import Root, bare, parse, read_canonical
from raylab.opt.notation import LONG_NAMES

VERSION = "1.0"
"""Version of the set of roots."""
CASE_SETS = ("gold", "systems", "proposed", "injections")
"""The packaged cases.

`gold` holds single mechanisms with the codes from the taxonomy's texts, which the prompts name, and
its notation examples; `systems` holds published systems that no prompt names, with codes that await
a second person; `proposed` holds hybrids and traps that nobody else has reviewed; `injections`
holds descriptions that give orders to the models that read them.
"""
PROMPTS: Traversable = resources.files("raylab.opt") / "prompts"
LONGEST, LONGEST_FOR_WORDS = 100_000, 1_500
"""Longest description in characters: about 25,000 tokens of prose; and for models that answer in
words, of which the embedded one has 1,536 tokens in total."""
SHOWN, SHOWN_FOR_WORDS = 4_000, 200
"""Characters of a rationale or report shown to another model; the rest is cut, with a note."""
WORD_WARNING = (
    "llm.prompt=word is for models too small to judge: no verdict, score or pass "
    "rate of such a run says anything about quality, and every code is a single root"
)


def opt_codebook(distance: str | None = None) -> Codebook:
    """Returns the codebook with the distances of a file; None takes the packaged opt-l1-v1.

    Raises:
        DataError: The file of distances cannot be used.
    """
    folder = resources.files("raylab.opt") / "data"
    return Codebook(
        name="opt-code",
        version=VERSION,
        label_name="an OPT-Code",
        case_sets={name: str(folder / f"{name}.jsonl") for name in CASE_SETS},
        categories={str(root): name for root, name in LONG_NAMES.items()},
        criteria=CRITERIA,
        execution_criterion=EXECUTION,
        execution_bait=frozenset({Root.EVO, Root.SCH, Root.SWM}),
        prompts={style: prompt_set(style) for style in ("minimal", "maximal", "word")},
        distance=load_distance(distance),
        parse=parse,
        read=read_canonical,
        parse_own=_parse_own,
    )


def _parse_own(text: str) -> Label:
    return parse(text, strict=True) if "=" in text else bare(text)


@cache
def prompt_set(style: str) -> PromptSet:
    """Returns the prompts of a style.

    Args:
        style: `minimal`, `maximal`, or `word`, which asks for one plain word from a list and is for
            models too small for codes.

    Raises:
        DataError: A file does not begin with its version.
    """
    words = style == "word"
    form, suffix = (WORD_ANSWERS, "_word") if words else (CODE_ANSWERS, "")

    def read(name: str, reply: type[ReplyModel] | None = None) -> PromptFile:
        schema = form.schema(reply) if reply else {}
        limits = (LONGEST_FOR_WORDS, SHOWN_FOR_WORDS) if words else (LONGEST, SHOWN)
        return read_prompt(PROMPTS, name, schema, *limits)

    return PromptSet(
        classify=read(f"classify_{style}", LabelReply),
        evaluate=read(f"evaluate{suffix}", ReportReply),
        adjudicate=read(f"adjudicate{suffix}", ChoiceReply),
        repair=read("repair"),
        form=form,
        open_book=not words,
        warning=WORD_WARNING if words else None,
    )
