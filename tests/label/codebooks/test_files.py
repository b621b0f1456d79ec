"""Codebooks in files: what is read, and what is refused with its line."""

import json
import re
from pathlib import Path

import pytest

from raylab.core.config.compose import load_config
from raylab.core.errors import ConfigError, DataError
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.codebook import EXAMPLES, CodebookConfig, read_codebook
from raylab.label.config.jobs import AnnotateConfig

HEAD = "name: x\ntask: Say what it is.\n"
LABELS = "labels:\n  one: The first.\n  two: The second.\n"
FIELDS = "fields:\n  kind:\n    labels: {one: First., two: Second.}\n"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_words_stay_text_and_a_definition_needs_no_key(tmp_path: Path) -> None:
    text = HEAD + "labels:\n  yes: It is.\n  no: {definition: It is not., examples: [no, 2 x]}\n"
    config = CodebookConfig.model_validate(read_codebook(written(tmp_path, text)))
    assert config.labels is not None and [*config.labels] == ["yes", "no"]
    assert (config.labels["yes"].definition, config.labels["no"].examples) == (
        "It is.",
        ["no", "2 x"],
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + LABELS + "  one: Again.\n", "line 6, column 3: 'one' stands twice"),
        (HEAD + LABELS + "  One: Again.\n", "line 6: .*one and One are one label: rename"),
        (HEAD + LABELS + "  Undo: Back.\n", "line 6: .*Undo is what a reviewer says"),
        (HEAD + LABELS + "  one more: No.\n", "line 6: .*one more begins with the label one"),
        (HEAD + LABELS + "  <b>three</b>: No.\n", "line 6: .*'<b>three</b>' is no name"),
        (HEAD + LABELS + "  -1: Against.\n", "'-1' is no name: it should begin and end "),
        (HEAD + LABELS + "  three: A {{ secret }}.\n", r"line 6: .*holds the markup '\{\{'"),
        (HEAD + LABELS + "  three: <script>x</script>\n", "line 6: .*holds the markup '<script>'"),
        (HEAD + LABELS + "labells: {}\n", r"line 6: labells: unknown key; did you mean labels\?"),
        (HEAD + "labels: {}\n", "line 3: labels: needs two labels or more"),
        (HEAD + "labels: {one: First.}\n", "line 3: labels: needs two labels or more"),
        (HEAD, "line 1: give labels: .* or fields:"),
        (HEAD + LABELS + FIELDS, "line 1: give labels: .* or fields:"),
        (LABELS + "name: x\n", "line 1: task: is needed"),
        (HEAD + FIELDS + "  age: {}\n", "the field age needs labels, number or text"),
        (HEAD + FIELDS + "  age: {number: [9, 1]}\n", r"line 6: .*least and the greatest"),
        (HEAD + "fields:\n  said: {text: 9}\n", "no field is compared"),
        (HEAD + FIELDS + "  said: {text: 9, distance: graded}\n", "a text has no distance"),
        (HEAD + LABELS + "distance: masi\n", "masi is of sets"),
        (HEAD + LABELS + "optional: true\n", "add a label for texts without one"),
        (HEAD + FIELDS + "  Big: {text: 9}\n", "line 6: .*'Big' is no name"),
        (HEAD + FIELDS + "  2nd: {text: 9}\n", "'2nd' is no name: it should begin with a letter"),
        (HEAD + LABELS + "rules: {labels: {text: Right.}}\n", "rule labels is there already"),
        ("- a list\n", "line 1: "),
        ("", "mine.yaml"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        read_codebook(written(tmp_path, text))
    assert "mine.yaml" in str(caught.value) and len(str(caught.value)) < 2000


def test_mistakes_are_told_together_the_first_ones_of_many(tmp_path: Path) -> None:
    wrong = "".join(f"  label-{n}:\n" for n in range(10, 17))
    with pytest.raises(ConfigError) as caught:
        read_codebook(written(tmp_path, f"task: 5\nseveral: yes\nlabels:\n{wrong}"))
    assert str(caught.value).partition("mine.yaml, ")[2].splitlines() == [
        "line 1: name: is needed",
        "  line 1: task: given 5, should be text",
        '  line 2: several: given "yes", should be true or false',
        "  line 4: labels.label-10: should be what the label means, in words",
        "  line 5: labels.label-11: should be what the label means, in words",
        "  and 5 more",
    ]


def test_a_file_that_is_not_there_and_a_table_that_is_no_metric(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        read_codebook(str(tmp_path / "gone.yaml"))
    values = read_codebook(written(tmp_path, HEAD + LABELS + "distance: [[0, 2], [2, 0]]\n"))
    config = AnnotateConfig.model_construct(codebook=CodebookConfig.model_validate(values))
    with pytest.raises(DataError, match="one-two is 2, should be above 0 and at most 1"):
        choose_codebook(config)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_configuration_holds_the_whole_codebook(name: str, tmp_path: Path) -> None:
    overrides = ["llm=openai", "llm.annotators=[{model: m}, {model: n}]"]
    overrides += ["llm.evaluator.model=n", "llm.adjudicator.model=n"]
    config = load_config(AnnotateConfig, [*overrides, f"codebook={name}"])
    copy = tmp_path / "copy.yaml"
    copy.write_text(Path(EXAMPLES[name]).read_text())
    copied = load_config(AnnotateConfig, [*overrides, f"codebook={copy}"])
    assert isinstance(config.codebook, CodebookConfig)
    assert isinstance(copied.codebook, CodebookConfig)
    own = {"cases": copied.codebook.cases}
    assert config.codebook.model_copy(update=own) == copied.codebook
    # A record has it as JSON, and every worker makes the same codebook of it.
    recorded = json.loads(config.model_dump_json())
    again = AnnotateConfig.of_record(recorded)
    assert again == config
    first, second = map(choose_codebook, (config, again))
    assert (first.version, first.distance.version) == (second.version, second.distance.version)
    hashes = [[file.hash for file in book.prompts["maximal"].files] for book in (first, second)]
    assert hashes[0] == hashes[1]


def test_an_unknown_codebook_is_refused_with_those_that_there_are() -> None:
    config = AnnotateConfig.model_construct(codebook="sentimental")
    names = re.escape("opt, sentiment, topics, entities")
    with pytest.raises(ConfigError, match=f"codebook=sentimental is none of {names}"):
        choose_codebook(config)
