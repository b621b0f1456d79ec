"""The two forms in which models give a code, its line or one plain word, and their criteria."""

import re

from raylab.codebook import FORMAT, AnswerForm, Criterion, Label, names_schema, quoted
from raylab.errors import OptCodeError
from raylab.opt.code import Root, bare, parse
from raylab.opt.notation import FIELDS

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
VALUE = "[A-Za-z][A-Za-z0-9_+-]{0,31}"


def code_pattern() -> str:
    """Returns the pattern of a full canonical line; it also admits unordered or repeated roots."""
    roots = f"({'|'.join(root.value for root in Root)})"
    fields = "".join(f"; {key}={VALUE}" for key in ASKED_FIELDS[:-1])
    return f"^OPT={roots}([+/]{roots}){{0,6}}{fields}; Human=(none|low|med|high)$"


def read_code(text: str, repairs: list[str]) -> Label:
    """Reads the code in a text, and adds its repairs to a list.

    Raises:
        OptCodeError: The text holds no code.
    """
    try:
        code = parse(text)
    except OptCodeError as error:
        raise OptCodeError(str(error).splitlines()[0]) from None
    repairs += code.repairs
    if missing := [key for key in ASKED_FIELDS if key not in code.fields]:
        repairs.append(f"fields not given: {', '.join(missing)}")
    return code


def read_word(text: str, repairs: list[str]) -> Label:
    """Reads the one word of `WORDS` in a text, or else the code in it, and adds its repairs.

    Raises:
        OptCodeError: The text holds none or several of the words, and no code.
    """
    if text in WORDS:
        return WORDS[text]
    named = {word for word in WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)}
    if len(named) == 1 and "OPT" not in text:
        code = WORDS[named.pop()]
    else:
        try:
            code = read_code(text, repairs)
        except OptCodeError:
            words = ", ".join(WORDS)
            raise OptCodeError(f"it holds {len(named) or 'none'} of the words {words}") from None
    repairs.append(f"word {quoted(text)} read as {code.composition}")
    return code


def _show_word(label: Label) -> str:
    return next((word for word, code in WORDS.items() if code == label), str(label))


CODE_ANSWERS = AnswerForm(
    name="opt",
    key="opt",
    label={"type": "string", "pattern": code_pattern()},
    read=read_code,
    criteria=CRITERIA,
)
WORD_ANSWERS = AnswerForm(
    name="opt",
    key="word",
    label=names_schema(WORDS),
    read=read_word,
    criteria=CRITERIA,
    reason="reason",
    text={"type": "string", "pattern": "^[A-Za-z0-9 ,.'-]{1,32}$"},
    show=_show_word,
    failed_criterion=MECHANISM,
)
