"""Codebooks from files at work: answers, schemas, distances, and the figures of their fields."""

import asyncio
import importlib
import json
import re
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.core.errors import LabelError
from raylab.label.codebooks.codebook import AnswerError, Codebook
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import EXAMPLES, CodebookConfig, read_codebook
from raylab.label.input.cases import Case
from raylab.label.protocol.outcome import read_outcome
from raylab.label.protocol.protocol import annotate
from raylab.label.statistics.frame import tabulate
from raylab.label.statistics.report import annotation_report
from raylab.llm.prompts import Schema
from tests.label.protocol.chats import GOOD, LLM, ScriptedChat, graded, settings_by
from tests.label.protocol.outcomes import CODEBOOK


def labels(*names: str) -> dict[str, Any]:
    return {name: {"definition": name} for name in names}


SIXTY: dict[str, Any] = {
    "name": "sixty",
    "task": "Say which number it is.",
    "several": True,
    "labels": labels(*(f"number-{n:02}" for n in range(60))),
}
FIVE: dict[str, Any] = {
    "name": "five",
    "task": "Describe the animal.",
    "fields": {
        "kind": {"labels": labels("cat", "dog", "newt")},
        "colours": {"labels": labels("black", "white", "red"), "several": True},
        "legs": {"number": [0, 4], "distance": "graded"},
        "weight": {"number": [0.0, 10.0]},
        "name": {"text": 20, "compare": "similar"},
    },
}


YES: dict[str, Any] = {
    "name": "yes",
    "task": "Is it so?",
    "several": True,
    "labels": labels("yes", "no", "true", "null", "1", "2.50"),
}


def book(content: Mapping[str, Any]) -> Codebook:
    return make_codebook(CodebookConfig.model_validate(content))


BOOKS = {
    **{name: book(read_codebook(file)) for name, file in EXAMPLES.items()},
    "opt": CODEBOOK,
    "sixty": book(SIXTY),
    "five": book(FIVE),
    "yes": book(YES),
}
REX = {"kind": "dog", "colours": ["black", "red"], "legs": 4, "weight": 7.5, "name": "Rex"}
REX_LINE = "kind: dog, colours: [black, red], legs: 4, weight: 7.5, name: Rex"


# Answers


@pytest.mark.parametrize(
    ("codebook", "written", "line", "repaired"),
    [
        ("sentiment", "positive", "positive", False),
        ("sentiment", " Positive ", "positive", True),
        ("sentiment", '"neutral".', "neutral", False),
        ("topics", ["water", "taxes"], "water, taxes", False),
        ("topics", ["taxes", "water"], "water, taxes", False),
        ("topics", "taxes, Water", "water, taxes", True),
        ("topics", '["taxes"]', "taxes", False),
        ("yes", "yes, 1, true", 'yes, "true", "1"', True),
        ("yes", ["2.50", "no"], 'no, "2.50"', False),
        ("five", REX, REX_LINE, False),
        ("five", json.dumps(REX), REX_LINE, False),
        ("five", REX_LINE, REX_LINE, False),
        ("five", "kind: Dog, name: Rex, colours: [red, black], weight: 7.5, legs: 4", REX_LINE,
         True),
    ],
)  # fmt: skip
def test_answers_are_read(codebook: str, written: Any, line: str, repaired: bool) -> None:
    repairs: list[str] = []
    form = BOOKS[codebook].prompts["maximal"].form
    assert str(form.read(written, repairs)) == line
    assert bool(repairs) == repaired


@pytest.mark.parametrize(
    ("codebook", "written", "problem"),
    [
        ("sentiment", "glad", "should be 'negative', 'neutral' or 'positive', found 'glad'"),
        ("sentiment", ["positive"], "should be"),
        ("topics", [], "should have at least 1, found"),
        ("topics", "water, wine", "found 'wine'"),
        ("five", {**REX, "legs": 5}, "legs: .*should be at most 4, found '5'"),
        ("five", {**REX, "legs": True}, "legs: "),
        ("five", {**REX, "name": ""}, "name: "),
        ("five", {**REX, "tail": "long"}, "tail: is not asked for, found 'long'"),
        ("five", {"kind": "dog"}, "colours: is needed$"),
        ("five", "a dog", "kind: "),
        ("five", "{", "line 1, column 2: "),
        ("five", "a: &a [1], b: [*a, *a]", "write the value out"),
        ("five", "x" * 5000, "at most 4,096"),
        ("five", 7, "found '7'"),
    ],
)
def test_other_answers_are_refused(codebook: str, written: Any, problem: str) -> None:
    with pytest.raises(LabelError, match=problem):
        BOOKS[codebook].prompts["maximal"].form.read(written, [])


def test_problems_of_an_answer_are_told_by_field() -> None:
    with pytest.raises(AnswerError) as refused:
        BOOKS["five"].parse_own({**REX, "kind": "cow", "legs": 5, "colours": ["black", "blue"]})
    assert [*refused.value.problems] == ["kind", "colours", "legs"]
    assert "found 'blue'" in refused.value.problems["colours"]
    # An answer whose line no later reading would take.
    fields = {f"text{n}": {"text": 1000, "compare": "exact"} for n in range(5)}
    essay = book({"name": "essay", "task": "Tell.", "fields": fields})
    with pytest.raises(LabelError, match="at most 4,096"):
        essay.parse_own(dict.fromkeys(fields, "x" * 1000))


def test_a_record_has_its_values_as_people_read_them() -> None:
    label = BOOKS["five"].parse_own(REX)
    assert label.values == {
        "kind": ("dog",),
        "colours": ("black", "red"),
        "legs": ("4",),
        "weight": ("7.5",),
        "name": ("Rex",),
    }
    assert (label.show("colours"), label.show("tail")) == ("black; red", "")
    assert not BOOKS["topics"].parse_own("waste").values


@given(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["cat", "dog", "newt"]),
            "colours": st.lists(st.sampled_from(["black", "white", "red"]), min_size=1, max_size=3),
            "legs": st.integers(0, 4),
            "weight": st.floats(0, 10),
            "name": st.text(min_size=1, max_size=20).filter(
                lambda text: any(map(str.isalnum, text))
            ),
        }
    )
)
def test_every_answer_has_one_line_that_reads_as_itself(values: dict[str, Any]) -> None:
    label = BOOKS["five"].read(json.dumps(values))
    again = BOOKS["five"].read(str(label))
    assert again == label and again.parts == label.parts
    assert len(label.categories) == 3 + len({*values["colours"]}) == len(label.measured) - 1
    assert label.primary == f"kind: {values['kind']}"


# OpenAI's guide to structured outputs: no other keywords, every key required, nothing beside them.
OBJECTS = {"title", "type", "properties", "required", "additionalProperties", "anyOf"}
STRICT_KEYWORDS = OBJECTS | {"items", "enum", "pattern", "minimum", "maximum", "maxItems"}


def keywords(schema: Schema) -> set[str]:
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    parts += [schema["items"]] if "items" in schema else []
    return {*schema}.union(*map(keywords, parts))


@pytest.mark.parametrize(("codebook", "style"), [*product(BOOKS, ("maximal", "minimal", "word"))])
def test_schemas_are_of_the_strict_subset_and_become_grammars(codebook: str, style: str) -> None:
    prompts = BOOKS[codebook].prompts[style]
    for prompt in prompts.files[:3]:
        schema = prompt.schema
        importlib.import_module("jsonschema").Draft202012Validator.check_schema(schema)
        assert keywords(schema) <= STRICT_KEYWORDS and schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
        for part in schema["properties"].values():
            # llama.cpp knows no look-ahead and no classes of characters by a backslash.
            assert re.fullmatch(r"\^(?!.*(\(\?|\\)).*\$", part.get("pattern", "^$"))
        grammar: str = importlib.import_module("xllamacpp").json_schema_to_grammar(schema)
        assert all(f'"{key}"' in grammar for key in prompt.keys)
        # Reasons come before what they lead to.
        assert prompt.keys[0] in ("rationale", "reason", "summary")
        assert prompt.keys[-1] in (prompts.form.key, "verdict")
        content: dict[str, Any] = {"description": "d", "code": "c", "rationale": "r"}
        assert "{{" not in prompt.messages(**content, candidates=[])[0].content


# Distances, by hand


@pytest.mark.parametrize(
    ("codebook", "a", "b", "distance"),
    [
        ("sentiment", "negative", "positive", 1.0),
        ("sentiment", "negative", "neutral", 0.5),
        # Half of the mass stays at water.
        ("topics", "water", "water, taxes", 0.5),
        # A third of it moves from health to each of the others.
        ("topics", "water, taxes", "water, taxes, health", 1 / 3),
        ("topics", "water", "taxes", 1.0),
        ("five", REX, {**REX, "kind": "cat"}, 1 / 5),
        ("five", REX, {**REX, "legs": 1}, 3 / 4 / 5),
        ("five", REX, {**REX, "weight": 7.4}, 1 / 5),
        # One of four letters.
        ("five", REX, {**REX, "name": "Rexi"}, 1 / 4 / 5),
        ("five", REX, {**REX, "name": "rex"}, 0.0),
        ("five", REX, {**REX, "colours": ["red"]}, 1 / 2 / 5),
    ],
)
def test_distances(codebook: str, a: Any, b: Any, distance: float) -> None:
    read, metric = BOOKS[codebook].prompts["maximal"].form.read, BOOKS[codebook].distance
    first, second = read(a, []).measured, read(b, []).measured
    assert metric(first, second) == metric(second, first) == pytest.approx(distance)


# The figures


def test_fields_are_confused_among_themselves_alone() -> None:
    codebook, rex = BOOKS["five"], json.dumps(REX)
    cat, newt = {**REX, "kind": "cat", "colours": ["red"]}, {**REX, "kind": "newt"}
    case = Case("1", "An animal.", rex, codebook.parse_own(rex))
    script = {
        "classify-a": json.dumps({"rationale": "so it is", "answer": cat}),
        "classify-b": json.dumps({"rationale": "so it is", "answer": newt}),
        "evaluate-a": GOOD,
        "evaluate-b": graded("WEAK_PASS", 80),
        "adjudicate": json.dumps({"rationale": "so", "choice": "synthesis", "answer": REX}),
        "confirm": GOOD,
    }
    settings = settings_by(LLM, codebook=codebook)
    outcome = asyncio.run(annotate(case, ScriptedChat(script), settings))
    assert outcome.label == case.gold_label
    assert read_outcome(outcome.model_dump(mode="json"), codebook) == outcome
    # Of four parts of A and five of B three are equal.
    assert outcome.agreements["AB"].jaccard == 3 / 6
    report = annotation_report(tabulate([(outcome, outcome.label)], codebook, "AB"))

    def cells(pair: str) -> dict[tuple[str, str, str], float]:
        return {
            (panel.field, panel.labels[row], panel.labels[column]): count
            for key, panel in report.confusion.items()
            for row, line in enumerate(panel.sets)
            for column, count in enumerate(line)
            if count and key.split(":")[0] == pair
        }

    same = {("legs", "4", "4"): 1, ("weight", "7.5", "7.5"): 1, ("colours", "red", "red"): 1}
    alone = ("colours", "none", "black")
    assert cells("annotators") == {**same, ("kind", "cat", "newt"): 1, alone: 1}
    black = ("colours", "black", "black")
    assert cells("gold_B") == {**same, ("kind", "dog", "newt"): 1, black: 1}
