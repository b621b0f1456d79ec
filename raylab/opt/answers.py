"""The two forms in which models give a code: its line, or one plain word."""

import re
from dataclasses import dataclass

from raylab.codebook import Label
from raylab.errors import OptCodeError
from raylab.llm.json_replies import quoted
from raylab.opt.code import OptCode, Root, parse
from raylab.opt.criteria import MECHANISM

WORDS = {
    "learning": Root.LRN,
    "evolution": Root.EVO,
    "rules": Root.SYM,
    "probability": Root.PRB,
    "search": Root.SCH,
    "control": Root.CTL,
    "swarm": Root.SWM,
}
"""Plain words for the roots, used with models too small to learn codes from a prompt."""

SHORT_WARNING = (
    "llm.prompt=word is for models too small to judge: no verdict, score or pass "
    "rate of such a run says anything about quality, and every code is a single root"
)


@dataclass(frozen=True)
class CodeAnswers:
    """Answers as code lines; see `raylab.codebook.AnswerForm`."""

    reason_key: str = "rationale"
    label_key: str = "opt"
    expected: str | None = None
    failed_criterion: str | None = None
    names_choice: bool = True

    def read(self, text: str, repairs: list[str]) -> OptCode:
        """Reads the code in a text."""
        try:
            code = parse(text)
        except OptCodeError as error:
            raise OptCodeError(f"no OPT-Code in it: {str(error).splitlines()[0]}") from None
        repairs += code.repairs
        if code.missing:
            repairs.append(f"fields not given: {', '.join(code.missing)}")
        return code

    def read_prose(self, text: str, repairs: list[str]) -> OptCode:
        """Reads the code in prose."""
        return self.read(text, repairs)

    def show(self, label: Label) -> str:
        """Returns the canonical line."""
        return str(label)


@dataclass(frozen=True)
class WordAnswers:
    """Answers as one word of `WORDS`; see `raylab.codebook.AnswerForm`."""

    reason_key: str = "reason"
    label_key: str = "word"
    expected: str | None = f"one of {', '.join(WORDS)}"
    failed_criterion: str | None = MECHANISM
    names_choice: bool = False

    def read(self, text: str, repairs: list[str]) -> OptCode:
        """Reads a word of the list; otherwise reads the text as `read_prose` does."""
        if text in WORDS:
            return OptCode(WORDS[text])
        mended: list[str] = []
        code = self.read_prose(text, mended)
        repairs += [f"word {quoted(text)} read as {code.composition}", *mended]
        return code

    def read_prose(self, text: str, repairs: list[str]) -> OptCode:
        """Reads the one word of the list in a text, or else the code in it."""
        named = {word for word in WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)}
        if len(named) == 1 and "OPT" not in text:
            return OptCode(WORDS[named.pop()])
        try:
            return CODE_ANSWERS.read(text, repairs)
        except OptCodeError:
            count = "none" if not named else f"{len(named)}"
            raise OptCodeError(f"it holds {count} of the words {', '.join(WORDS)}") from None

    def show(self, label: Label) -> str:
        """Returns the word for a code, or its line if it has none."""
        line = str(label)
        return next((word for word, root in WORDS.items() if line == f"OPT={root}"), line)


CODE_ANSWERS, WORD_ANSWERS = CodeAnswers(), WordAnswers()
