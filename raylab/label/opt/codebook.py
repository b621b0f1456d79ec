"""The Operational Premise Taxonomy as a codebook: criteria, forms of answers, prompts, distance.

Models give a code as its line or, if they are too small for that, as one plain word.
"""

import json
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from raylab.label.codebooks.codebook import (
    FORMAT,
    Agreement,
    AnswerForm,
    Codebook,
    Criterion,
    Label,
    PromptSet,
    names_schema,
    quote,
)
from raylab.label.codebooks.codebook import compare as compare_labels
from raylab.label.codebooks.distances import WASSERSTEIN, FieldDistance, wasserstein
from raylab.label.opt.code import (
    FIELDS,
    LONG_NAMES,
    OptCodeError,
    Root,
    bare,
    parse,
    read_canonical,
)

VERSION = "1.0"
"""Version of the set of roots."""
CASE_SETS = ("systems+gold", "gold", "systems", "proposed", "injections")
"""The packaged cases.

`gold` holds single mechanisms with the codes from the taxonomy's texts, which the prompts name, and
its notation examples; `systems` holds published systems that no prompt names, with codes that await
a second person; `proposed` holds hybrids and traps that nobody else has reviewed; `injections`
holds descriptions that give orders to the models that read them.
"""
PROMPTS: Traversable = resources.files("raylab.label.opt") / "prompts"
ASKED_FIELDS = FIELDS[:-1]
"""The fields that a classifier is asked for; v1.0 makes every field optional."""
MECHANISM = "mechanism"
EXECUTION = "parallelism/pipelines"
"""Parallelism or pipelines mistaken for a mechanism."""
CRITERIA = (
    FORMAT,
    Criterion(MECHANISM, 50, ("mechanisms", "root", "roots")),
    Criterion(EXECUTION, 60, ("parallelism", "pipeline", "pipelines", "execution")),
    Criterion("composition"),
    Criterion("attributes", synonyms=("attribute", "attribute plausibility")),
)
"""The criteria in the order of reports, with the caps on labels that do not meet them."""
WORDS: dict[str, Label] = dict(
    zip(
        "learning evolution rules probability search control swarm".split(),
        map(bare, Root),
        strict=True,
    )
)
"""Plain words for the roots, used with models too small to learn codes from a prompt."""
ROOTS = f"({'|'.join(Root)})"
ASKED = "".join(f"; {key}=[A-Za-z][A-Za-z0-9_+-]{{0,31}}" for key in ASKED_FIELDS[:-1])
CODE_PATTERN = f"^OPT={ROOTS}([+/]{ROOTS}){{0,6}}{ASKED}; Human=(none|low|med|high)$"
"""The pattern of a full canonical line; it also admits unordered or repeated roots."""


def read_code(text: str, repairs: list[str]) -> Label:
    """Reads the code in a text, and adds its repairs to a list."""
    code = parse(text)
    repairs += code.repairs
    if missing := [key for key in ASKED_FIELDS if key not in code.fields]:
        repairs.append(f"fields not given: {', '.join(missing)}")
    return code


def read_word(text: str, repairs: list[str]) -> Label:
    """Reads the one word of `WORDS` in a text, and adds its repairs."""
    words = [word for word in WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)]
    if len(words) != 1:
        raise OptCodeError(f"it holds {len(words) or 'none'} of the words {', '.join(WORDS)}")
    if text != words[0]:
        repairs.append(f"word {quote(text)} read as {words[0]}")
    return WORDS[words[0]]


CODE_ANSWERS = AnswerForm(
    name="opt",
    key="opt",
    label={"type": "string", "pattern": CODE_PATTERN},
    read=read_code,
    criteria=CRITERIA[1:],
)
WORD_ANSWERS = AnswerForm(
    name="opt",
    key="word",
    label=names_schema(WORDS),
    read=read_word,
    criteria=CRITERIA[1:],
    show=lambda label: next((word for word, code in WORDS.items() if code == label), str(label)),
    failed_criterion=MECHANISM,
)


@cache
def packaged_distance() -> FieldDistance:
    """Returns the distance opt-l1-v1."""
    file = resources.files("raylab.label.opt") / "data/distance_opt_l1_v1.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    measure = wasserstein(content["labels"], content["table"])
    return FieldDistance(WASSERSTEIN, measure, content["version"])


def compare(a: Label, b: Label) -> Agreement:
    """Compares two codes by the measures of `Agreement`; symmetric.

    `weighted` is 1 minus the 1-Wasserstein distance of the sets of roots, with the packaged
    distance of two roots.
    """
    return compare_labels(a, b, packaged_distance())


def opt_codebook() -> Codebook:
    """Returns the codebook of the Operational Premise Taxonomy."""
    folder = resources.files("raylab.label.opt") / "data"
    return Codebook(
        name="opt-code",
        version=VERSION,
        label_name="an OPT-Code",
        case_sets={
            name: tuple(str(folder / f"{file}.jsonl") for file in name.split("+"))
            for name in CASE_SETS
        },
        categories={str(root): name for root, name in LONG_NAMES.items()},
        examples=("Evo/Lrn+Ctl", "OPT=Lrn; Rep=param; Obj=loss; Data=batch; Time=step; Human=low"),
        criteria=CRITERIA,
        # Threads and clusters suggest these.
        bait=frozenset({Root.EVO, Root.SCH, Root.SWM}),
        prompts={style: prompt_set(style) for style in ("minimal", "maximal", "word")},
        distance=packaged_distance(),
        read=read_canonical,
        parse_own=lambda text: parse(text, strict=True) if "=" in text else bare(text),
        parse_gold=parse,
    )


@cache
def prompt_set(style: str) -> PromptSet:
    """Returns the prompts of a style.

    Args:
        style: `minimal`, `maximal`, or `word`, which asks for one plain word from a list and is for
            models too small for codes.
    """
    words = style == "word"
    form, suffix = (WORD_ANSWERS, "_word") if words else (CODE_ANSWERS, "")
    names = (f"classify_{style}", f"evaluate{suffix}", f"adjudicate{suffix}")
    return PromptSet.read(PROMPTS, names, form, open_book=not words)
