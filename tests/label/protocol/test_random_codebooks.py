"""Codebooks drawn at random go from a run to its report, its export, drift and a second run."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook, recorded_codebook
from raylab.label.config.codebook import CodebookConfig
from raylab.label.pages.drift import report_drift
from tests.label.protocol.studies import carry_out, study

NAMES = ["zeal", "anger", "model_config", "mood", "byte"]


@st.composite
def labels(draw: st.DrawFn) -> dict[str, str]:
    names = draw(st.permutations(["low", "R&D/other?", "high", "1", "2.50"]))
    return {name: f"It is {name}." for name in names[: draw(st.integers(2, 5))]}


@st.composite
def codebooks(draw: st.DrawFn) -> dict[str, Any]:
    """One of labels alone, or of up to five fields, of which the first is of any kind."""
    head = {"name": "drawn", "task": "Say what it is."}
    if draw(st.booleans()):
        return {
            **head,
            "labels": draw(labels()),
            "distance": draw(st.sampled_from(["equal", "graded"])),
        }
    fields: dict[str, Any] = {}
    for name in draw(st.permutations(NAMES))[: draw(st.integers(1, 5))]:
        kind = draw(st.sampled_from(["label", "several", "number", "text"]))
        match kind:
            case "number":
                field: dict[str, Any] = {"number": [0, 9], "distance": "graded"}
            case "text":
                field = {"text": 30, "compare": draw(st.sampled_from(["none", "exact", "similar"]))}
            case "several":
                field = {"labels": draw(labels()), "several": True}
                field["distance"] = draw(st.sampled_from(["equal", "graded", "jaccard", "masi"]))
            case _:
                field = {
                    "labels": draw(labels()),
                    "distance": draw(st.sampled_from(["equal", "graded"])),
                }
        fields[name] = {**field, "optional": draw(st.booleans())}
    fields["last"] = {"labels": draw(labels())}
    return {**head, "fields": fields}


def values(draw: st.DrawFn, book: CodebookConfig) -> Any:
    """An answer that the codebook admits."""
    answer: dict[str, Any] = {}
    for name, field in book.parts.items():
        if field.number:
            value: Any = draw(st.integers(0, 9))
        elif field.text:
            value = draw(st.sampled_from(["a parcel", "A parcel", "none", 'say "no": [x]']))
        else:
            names = [*(field.labels or ())]
            value = draw(st.sampled_from(names))
            value = sorted({value, names[0]}, key=names.index) if field.several else value
        if field.optional and draw(st.booleans()):
            value = "" if field.text else [] if field.several else None
        answer[name] = value
    return answer if book.fields else answer[""]


@st.composite
def studies(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """A codebook with the answers of two annotators to some texts."""
    content = draw(codebooks())
    book = CodebookConfig.model_validate(content)
    return content, [
        (values(draw, book), values(draw, book)) for _ in range(draw(st.integers(2, 4)))
    ]


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(studies(), studies())
def test_any_codebook_goes_from_its_run_to_drift_and_a_second_run(
    first: tuple[dict[str, Any], list[tuple[Any, Any]]],
    second: tuple[dict[str, Any], list[tuple[Any, Any]]],
) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory)
        reports = dict[str, Any]()
        for name, (content, answers) in {"one": first, "two": second, "three": first}.items():
            rows = [
                {"id": f"c{n}", "description": f"Text {n}.", "gold": answer}
                for n, (answer, _) in enumerate(answers)
            ]
            (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            cases = {"path": str(root / f"{name}.jsonl")}
            config = study(root, name, content, cases, export="parquet")
            reports[name] = carry_out(config, answers)
            # Resumed, it says the same.
            again = carry_out(config, answers)
            assert again["gold"] == reports[name]["gold"]
            assert again["agreement"] == reports[name]["agreement"]
            assert reports[name]["gold"]["A"]["labels"]["value"] == 1.0
            frame = pd.read_parquet(root / name / "cases.parquet")
            book = choose_codebook(config)
            for field in book.fields:
                shown = [book.read(line).show(field) for line in frame["code_a"]]
                if book.questions[field].number:
                    shown = [float(text) if text else None for text in shown]
                cells = frame[f"code_a.{field}"].astype(object)
                assert [*cells.where(cells.notna(), None)] == shown
            with Archive.open(root / "archive.db", create=False) as archive:
                kept = recorded_codebook(archive.run(name).row().config)
            assert (kept.version, [*kept.definitions]) == (book.version, [*book.definitions])
            assert kept.distance.version == book.distance.version
        assert reports["three"]["agreement"] == reports["one"]["agreement"]
        report_drift(str(root), None)
        drift = json.loads((root / "drift.json").read_text())
        assert drift["runs"] == ["one", "two", "three"] and not drift["unread"]
        assert {change["before"] for change in drift["comparisons"]} >= {"one"}
