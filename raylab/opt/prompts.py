"""The prompts of the protocol: versioned files, the schemas of their replies, and the fence.

The files lie in `prompts/`. A prompt's hash covers all that decides what a model is told: its
file, the files it includes, and the schema. Whatever others wrote, descriptions as well as other
models' rationales, is shown within a fence that its content cannot close.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, meta

from raylab.annotation.outcome import Issue, Verdict
from raylab.config.annotation import Prompt
from raylab.errors import DataError
from raylab.llm.chat import Message
from raylab.opt.code import Root

Json = dict[str, Any]

LONGEST = 100_000
"""Characters of a description that the prompts take: some 25,000 tokens of prose."""
LONGEST_FOR_WORDS = 1_500
"""The same where a model answers in words: the embedded one has 1,536 tokens for everything."""
SHOWN = 4_000
"""Characters of a rationale or report that another model is shown; more is cut, visibly."""
SHOWN_FOR_WORDS = 200
"""The same where a model answers in words."""
FENCE_DIGITS = 8
VERSION = re.compile(r"\{#- version (\S+) -#\}")
TURNS = re.compile(r"<(?=[|\uff5c]|/?(?:s|bos|eos|(?:start|end)_of_turn)>|<?/?SYS>)|\[(?=/?INST\])")
"""Where the chat templates of local servers see the border of a turn, also within a message."""

WORDS = {
    "learning": Root.LRN,
    "evolution": Root.EVO,
    "rules": Root.SYM,
    "probability": Root.PRB,
    "search": Root.SCH,
    "control": Root.CTL,
    "swarm": Root.SWM,
}
"""Plain words for the roots, for models too small to learn codes from a prompt."""

SHORT_TEXT = "^[A-Za-z0-9 ,.'-]{1,32}$"
VALUE = "[A-Za-z][A-Za-z0-9_+-]{0,31}"


@dataclass(frozen=True)
class PromptFile:
    """A prompt and the schema of its reply.

    Attributes:
        name: name of its file.
        version: its version, raised with every change; a test holds hash and version together.
        text: all that decides what a model is told: files and schema.
        schema: JSON schema of the reply; keys that hold reasons come before those they lead to.
            It keeps to what OpenAI's strict mode and llama.cpp's grammars both understand.
        longest: characters of the longest description that it takes.
        shown: characters shown of another model's text.
    """

    name: str
    version: str
    text: str
    schema: Json
    longest: int
    shown: int

    @property
    def hash(self) -> str:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def label(self) -> str:
        """Name and version, such as `evaluate@1`."""
        return f"{self.name}@{self.version}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the reply, in order."""
        return tuple(self.schema.get("properties", ()))

    def messages(self, **content: object) -> tuple[Message, ...]:
        """The turns of a call.

        Args:
            **content: the variables of the file.

        Raises:
            ValueError: A variable is missing, or is none of the file's.
        """
        if content.keys() != _variables(self.name):
            raise ValueError(f"{self.name}.j2 takes {', '.join(sorted(_variables(self.name)))}")
        template = _environment().get_template(f"{self.name}.j2")
        context = template.new_context({**content, "fenced": fenced})
        return tuple(
            Message(role, "".join(template.blocks[role](context)).strip())
            for role in ("system", "user")
            if role in template.blocks
        )


@dataclass(frozen=True)
class PromptSet:
    """The prompts that belong together.

    Attributes:
        classify: for both annotators.
        evaluate: for the evaluator, and for the confirmation of a settled code.
        adjudicate: for the adjudicator.
        repair: the second turn after a reply that cannot be read.
        words: whether classifier and adjudicator answer in `WORDS`.
    """

    classify: PromptFile
    evaluate: PromptFile
    adjudicate: PromptFile
    repair: PromptFile
    words: bool


def prompt_set(prompt: Prompt) -> PromptSet:
    """The prompts that a configuration chooses by the classifier's."""
    words = prompt is Prompt.WORD
    suffix = "_word" if words else ""
    return PromptSet(
        load_prompt(f"classify_{prompt.value}"),
        load_prompt(f"evaluate{suffix}"),
        load_prompt(f"adjudicate{suffix}"),
        load_prompt("repair"),
        words,
    )


def prompt_catalogue() -> dict[str, tuple[str, str, str]]:
    """Name, version and text of every prompt by its hash, for the archive.

    The hash is the SHA-256 of the text, so that an archive proves its own prompts.
    """
    prompts = [load_prompt(name) for name in _names()]
    return {prompt.hash: (prompt.name, prompt.version, prompt.text) for prompt in prompts}


@cache
def load_prompt(name: str) -> PromptFile:
    """The prompt of a file in `prompts/`.

    Raises:
        DataError: The file tells no version.
        jinja2.TemplateError: There is no such file, or it is broken.
    """
    source = _source(name)
    found = VERSION.match(source)
    if found is None:
        raise DataError(f"the prompt {name}.j2 does not begin with {{#- version ... -#}}: add it")
    schema = _schema(name)
    files = "\n".join(f"=== {part}.j2\n{_source(part)}" for part in (name, *_included(name)))
    for_words = name.endswith("_word")
    return PromptFile(
        name,
        found[1],
        f"{files}\n=== schema of the reply\n{json.dumps(schema, indent=1)}\n",
        schema,
        LONGEST_FOR_WORDS if for_words else LONGEST,
        SHOWN_FOR_WORDS if for_words else SHOWN,
    )


def fenced(text: str, label: str) -> str:
    """Text of others between two tags that it cannot contain.

    The tags carry a hash of the text, so that equal calls stay equal.
    """
    text = neutral(text)
    tag, attempt = "", 0
    while not tag or tag in text.lower():
        content = f"{label}\n{attempt}\n{text}".encode(errors="surrogatepass")
        tag, attempt = hashlib.sha256(content).hexdigest()[:FENCE_DIGITS], attempt + 1
    return f"<{label} id={tag}>\n{text}\n</{label} id={tag}>"


def neutral(text: str) -> str:
    """The text with a space in what a local server would take for the border of a turn."""
    return TURNS.sub(lambda found: found[0] + " ", text)


def shortened(text: str, longest: int) -> str:
    """At most so many characters of a text and, if any are left out, a note of how many."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]} [{len(text) - longest} characters left out]"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("raylab.opt", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        auto_reload=False,
    )


def _names() -> list[str]:
    names = [name.removesuffix(".j2") for name in _environment().list_templates(["j2"])]
    return [name for name in names if not name.startswith("_")]


def _source(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, f"{name}.j2")[0]


@cache
def _variables(name: str) -> frozenset[str]:
    """The variables that a prompt takes; the files that it includes take none."""
    found = meta.find_undeclared_variables(_environment().parse(_source(name)))
    return frozenset(found - {"fenced"})


def _included(name: str) -> Iterator[str]:
    """Names of the files that a prompt includes, in order."""
    for part in meta.find_referenced_templates(_environment().parse(_source(name))):
        assert part is not None, f"{name}.j2 includes a file that it does not name"
        yield part.removesuffix(".j2")
        yield from _included(part.removesuffix(".j2"))


def _schema(name: str) -> Json:
    code = {"type": "string", "pattern": code_pattern()}
    score = {"type": "integer", "minimum": 0, "maximum": 100}
    verdict = {"type": "string", "enum": [verdict.value for verdict in Verdict]}
    word = {"type": "string", "enum": list(WORDS)}
    text, short = {"type": "string"}, {"type": "string", "pattern": SHORT_TEXT}
    match name:
        case "classify_minimal" | "classify_maximal":
            return _object("opt_classification", rationale=text, opt=code)
        case "classify_word":
            return _object("opt_classification", reason=short, word=word)
        case "evaluate":
            issues = [issue.value for issue in Issue if issue is not Issue.FORMAT]
            listed = {"type": "array", "items": {"type": "string", "enum": issues}}
            bounded = {**listed, "maxItems": len(issues)}
            return _object(
                "opt_evaluation", summary=text, issues=bounded, score=score, verdict=verdict
            )
        case "evaluate_word":
            return _object("opt_evaluation", summary=short, score=score, verdict=verdict)
        case "adjudicate":
            choice = {"type": "string", "enum": ["first", "second", "synthesis"]}
            return _object("opt_adjudication", rationale=text, choice=choice, opt=code)
        case "adjudicate_word":
            return _object("opt_adjudication", reason=short, word=word)
        case _:
            return {}


def _object(title: str, **properties: Json) -> Json:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def code_pattern() -> str:
    """Pattern of a full canonical line; it also admits roots out of order or repeated."""
    roots = f"({'|'.join(root.value for root in Root)})"
    fields = "".join(f"; {key}={VALUE}" for key in ("Rep", "Obj", "Data", "Time"))
    return f"^OPT={roots}([+/]{roots}){{0,6}}{fields}; Human=(none|low|med|high)$"
