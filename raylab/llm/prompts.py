"""Prompts: versioned files with the schemas of their replies, and fences around foreign text.

A prompt's hash covers everything that determines it: its file, the included files and the schema.
Text by others, such as descriptions and other models' replies, is shown within a fence that the
text cannot close.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, Template, meta

from raylab.core.errors import DataError
from raylab.llm.chat import Message

Schema = dict[str, Any]
Files = tuple[tuple[str, str], ...]
"""Names, without extensions, and sources of a prompt's file and its included files."""

SHARED = resources.files("raylab.llm") / "prompt_files"
"""The folder of the files that the prompts of all codebooks share."""
FENCE_DIGITS = 8
VERSION = re.compile(r"\{#- version (\S+) -#\}")
TURNS = re.compile(r"<(?=[|\uff5c]|/?(?:s|bos|eos|(?:start|end)_of_turn)>|<?/?SYS>)|\[(?=/?INST\])")
"""Text within a message that chat templates of local servers take for the border of a turn."""


@dataclass(frozen=True)
class PromptFile:
    """A prompt and the schema of its reply.

    Attributes:
        version: its version, raised with every change; a test checks it against the hash.
        schema: JSON schema of the reply; keys that hold reasons come before those they lead to.
            It only uses features that OpenAI's strict mode and llama.cpp's grammars share.
        longest: longest description in characters.
        shown: characters shown of another model's text.
    """

    name: str
    version: str
    files: Files
    schema: Schema
    longest: int
    shown: int

    @property
    def text(self) -> str:
        """The text that determines the prompt: its files and its schema."""
        files = "\n".join(f"=== {name}.j2\n{source}" for name, source in self.files)
        return f"{files}\n=== schema of the reply\n{json.dumps(self.schema, indent=1)}\n"

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the reply, in order."""
        return tuple(self.schema.get("properties", ()))

    @cached_property
    def _template(self) -> Template:
        environment = Environment(
            loader=DictLoader({f"{name}.j2": source for name, source in self.files}),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        return environment.get_template(f"{self.name}.j2")

    def messages(self, **content: object) -> tuple[Message, ...]:
        """Returns the turns of a call.

        The content has the variables of the file, besides `fenced` and `keys`.
        """
        blocks = self._template.blocks
        context = self._template.new_context({"fenced": fence, "keys": self.keys, **content})
        return tuple(
            Message(role, "".join(blocks[role](context)).strip())
            for role in ("system", "user")
            if role in blocks
        )


def read_prompt(
    folder: Traversable,
    name: str,
    schema: Schema,
    longest: int,
    shown: int,
    made: Mapping[str, str] = MappingProxyType({}),
) -> PromptFile:
    """Reads a prompt from a folder of `.j2` files; the arguments are those of `PromptFile`.

    Args:
        folder: The folder; files that it lacks come from the folder of all codebooks.
        made: Texts that are included as files, by name.
    """
    source = _source(folder, f"{name}.j2", made)
    version = VERSION.match(source)
    if version is None:
        raise DataError(f"the prompt {name}.j2 does not begin with {{#- version ... -#}}: add it")
    included = map(str, meta.find_referenced_templates(Environment().parse(source)))
    files = [(file.removesuffix(".j2"), _source(folder, file, made)) for file in included]
    return PromptFile(name, version[1], ((name, source), *files), schema, longest, shown)


def fence(text: str, label: str) -> str:
    """Returns foreign text between two tags that it cannot contain.

    The tags carry a hash of the text, so that equal calls stay equal.
    """
    text = neutral(text)
    tag, attempt = "", 0
    while not tag or tag in text.lower():
        content = f"{label}\n{attempt}\n{text}".encode(errors="surrogatepass")
        tag, attempt = hashlib.sha256(content).hexdigest()[:FENCE_DIGITS], attempt + 1
    return f"<{label} id={tag}>\n{text}\n</{label} id={tag}>"


def neutral(text: str) -> str:
    """Returns the text with a space in all that a server may take for the border of a turn."""
    return TURNS.sub(lambda border: border[0] + " ", text)


def shorten(text: str, longest: int) -> str:
    """Returns the first characters of a text, and a note with the number of those left out."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]} [{len(text) - longest} characters left out]"


def _source(folder: Traversable, file: str, made: Mapping[str, str]) -> str:
    if file in made:
        return made[file]
    path = folder / file
    return (path if path.is_file() else SHARED / file).read_text(encoding="utf-8")
