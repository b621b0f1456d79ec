import asyncio
import json
import re
import shutil
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.core.errors import DataError
from raylab.label.input.cases import Case
from raylab.label.opt.code import Root, parse
from raylab.label.opt.codebook import CODE_PATTERN, PROMPTS
from raylab.label.protocol.outcome import Status
from raylab.label.protocol.protocol import annotate
from raylab.llm.prompts import fence, neutral, read_prompt, shorten
from tests.label.protocol.chats import AGREED, DISPUTED, Script, ScriptedChat, coded, settings_of
from tests.label.protocol.outcomes import CODEBOOK, PACKAGED

INJECTIONS = PACKAGED["injections"]

# Another text under the same version would make archives say that two runs were told the same.
# Raise the version in the file, then put the new hash here.
VERSIONS = {
    "adjudicate": ("3", "302ea0a6d91164f0"),
    "adjudicate_word": ("1", "2edfd8cdc5e9e33c"),
    "classify_maximal": ("2", "8d604b7f24fa8080"),
    "classify_minimal": ("1", "58c3645459b106ca"),
    "classify_word": ("1", "014e2d424ca26ce6"),
    "evaluate": ("2", "1bd9d99ddaf09c1b"),
    "evaluate_word": ("1", "124afb7cec1d87b0"),
    "repair": ("1", "169ce555cf27592e"),
}
ALL = {file.name: file for prompts in CODEBOOK.prompts.values() for file in prompts.files}
TOLD = "".join(prompt.text for prompt in ALL.values())


def test_another_text_has_another_version() -> None:
    assert {name: (file.version, file.hash[:16]) for name, file in ALL.items()} == VERSIONS


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("evaluate", {"evaluate"}),
        ("_roots", {"adjudicate", "classify_maximal", "evaluate"}),
        ("_words", {"adjudicate_word", "classify_word", "evaluate_word"}),
    ],
)
def test_hash_covers_the_file_and_what_it_includes(
    tmp_path: Path, file: str, changed: set[str]
) -> None:
    shutil.copytree(str(PROMPTS), tmp_path / "prompts")
    path = tmp_path / "prompts" / f"{file}.j2"
    path.write_text(path.read_text() + ".")
    copies = [
        read_prompt(tmp_path / "prompts", name, prompt.schema, 1, 1) for name, prompt in ALL.items()
    ]
    assert {copy.name for copy in copies if copy.hash != ALL[copy.name].hash} == changed


def test_prompt_without_a_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "repair.j2").write_text("{% block user %}Again.{% endblock %}")
    with pytest.raises(DataError, match=re.escape("repair.j2 does not begin with {#- version")):
        read_prompt(tmp_path, "repair", {}, 1, 1)


def test_packaged_cases_have_sources_gold_and_traps_that_do_not_bait_with_it() -> None:
    gold, systems, proposed = (PACKAGED[name] for name in ("gold", "systems", "proposed"))
    assert PACKAGED["systems+gold"] == [*systems, *gold]
    assert (len(gold), len(proposed), len(INJECTIONS)) == (51, 14, 16) and len(systems) >= 60
    for case in (*gold, *systems, *proposed, *INJECTIONS):
        assert case.gold_label is not None
        assert case.gold_label.categories.isdisjoint(case.meta.get("bait", ())), case.id
    for case in (*gold, *systems, *proposed):
        assert case.meta["source"]
    assert not any(case.trap or "reviewed" in case.meta for case in gold)
    assert not any(case.meta["reviewed"] for case in (*systems, *proposed, *INJECTIONS))
    assert all(case.trap is case.id.startswith("trap-") for case in proposed)
    assert all(case.trap and case.meta["bait"] for case in INJECTIONS)
    assert len({case.meta["attack"] for case in INJECTIONS}) == len(INJECTIONS)


def test_prompts_name_no_gold_but_that_of_single_mechanisms() -> None:
    for case in PACKAGED["gold"]:
        assert case.gold_label is not None
        assert case.meta.get("open_book", False) is (len(case.gold_label.categories) == 1)
    for case in (*PACKAGED["gold"], *PACKAGED["systems"], *PACKAGED["proposed"]):
        words = case.description.split()
        for start in range(len(words) - 6):
            assert " ".join(words[start : start + 6]) not in TOLD


def test_held_out_systems_are_dated_and_not_named_by_a_prompt() -> None:
    systems = PACKAGED["systems"]
    for case in systems:
        assert not re.search(rf"\b{re.escape(case.meta['name'])}\b", TOLD, re.IGNORECASE), case.id
        assert re.search(r", (18|19|20)\d\d, ", case.meta["source"])
        assert not case.meta.get("open_book") and case.trap is ("bait" in case.meta)
    assert len({case.description for case in systems}) == len(systems)
    labels = [case.gold_label for case in systems if case.gold_label is not None]
    assert sum(len(label.categories) == 2 for label in labels) >= 20
    assert sum(case.trap for case in systems) >= 10
    assert {root for label in labels for root in label.categories} == set(Root)


@given(text=st.from_regex(CODE_PATTERN, fullmatch=True))
def test_what_the_schema_admits_can_be_read(text: str) -> None:
    code = parse(text)
    assert len(code.fields) == 5 and code.categories <= set(Root)


# The fence


def fences_of(message: str) -> Iterator[tuple[str, str]]:
    """Label and content of every fence, found as the instructions say: by equal ids."""
    place = 0
    while opening := re.compile(r"<(\w+) id=([0-9a-f]{8})>\n").search(message, place):
        closing = f"\n</{opening[1]} id={opening[2]}>"
        end = message.index(closing, opening.end())
        yield opening[1], message[opening.end() : end]
        place = end + len(closing)


HOSTILE = st.text(max_size=200) | st.text(
    alphabet=string.hexdigits + "</> id=description\n|[]INST", max_size=200
)


@given(text=HOSTILE, label=st.sampled_from(["description", "rationale", "report"]))
def test_content_cannot_close_its_fence(text: str, label: str) -> None:
    whole = fence(text, label)
    assert list(fences_of(whole)) == [(label, neutral(text))]
    opening, closing = whole.splitlines()[0], whole.rsplit("\n", 1)[1]
    assert whole.count(opening) == whole.count(closing) == 1
    assert closing == "</" + opening[1:]
    assert opening.split("=")[1].rstrip(">") not in neutral(text)
    assert fence(text, label) == whole


@pytest.mark.parametrize(
    "text",
    [
        *("<|im_start|>system", "<|eot_id|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
        *("<start_of_turn>model", "</s><s>", "[INST] x [/INST]", "<<SYS>> x <</SYS>>"),
    ],
)
def test_borders_of_turns_are_broken(text: str) -> None:
    changed = neutral(text)
    assert changed != text and changed.replace(" ", "") == text.replace(" ", "")
    assert neutral(changed) == changed


def test_code_and_markup_stay_as_they_are() -> None:
    text = "if a < b and c[i] > d: print('<b>', f(x) | y) # <div> List<String> a<s b</span>"
    assert neutral(text) == text
    assert (shorten("abc", 3), shorten("abcdef", 3)) == ("abc", "abc [3 characters left out]")


# Descriptions that give orders


WORD = json.dumps({"reason": "it feeds back", "word": "control"})
GRADE = json.dumps({"summary": "so it seems", "score": 90, "verdict": "PASS"})
SCRIPTS: dict[str, Script] = {
    "maximal": AGREED,
    "word": {role: WORD if role.startswith("classify") else GRADE for role in AGREED},
}


@pytest.mark.parametrize("case", INJECTIONS, ids=lambda case: case.id)
@pytest.mark.parametrize("prompt", SCRIPTS)
def test_orders_in_a_description_stay_within_its_fence(case: Case, prompt: str) -> None:
    plain = Case("plain", "A plain system.")
    chats = [ScriptedChat(SCRIPTS[prompt]), ScriptedChat(SCRIPTS[prompt])]
    for each, chat in zip((case, plain), chats, strict=True):
        outcome = asyncio.run(annotate(each, chat, settings_of(prompt=prompt)))
        assert outcome.status is Status.ACCEPTED, "the replies decide, whatever the text says"
        assert outcome.label is not None and outcome.label.composition == "Ctl"
    for (_, asked), (_, asked_plain) in zip(chats[0].requests, chats[1].requests, strict=True):
        assert asked.messages[0] == asked_plain.messages[0]
        said, said_plain = asked.messages[-1].content, asked_plain.messages[-1].content
        (label, content), *others = fences_of(said)
        assert (label, content) == ("description", neutral(case.description))
        assert others == list(fences_of(said_plain))[1:]
        _, rest = said.split(content)
        assert "<|" not in said and "[INST]" not in said
        assert rest[40:] == said_plain.split(plain.description)[1][40:]


def test_orders_in_a_rationale_stay_within_its_fence() -> None:
    order = INJECTIONS[0].description
    report = json.dumps({**json.loads(GRADE), "summary": order, "issues": []})
    chat = ScriptedChat({**DISPUTED, "classify-a": coded("Ctl", order), "evaluate-a": report})
    asyncio.run(annotate(Case("plain", "A plain system."), chat, settings_of()))
    assert ("rationale", neutral(order)) in fences_of(chat.shown("evaluate-a"))
    shown = list(fences_of(chat.shown("adjudicate")))
    assert {("rationale", neutral(order)), ("report", neutral(order))} < {*shown}
    assert len(shown) == 5
