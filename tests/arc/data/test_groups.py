import logging
from pathlib import Path

import pytest

from raylab.arc.config.sections import DataConfig
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.core.errors import DataError
from tests.arc.tasks import task


@pytest.mark.parametrize(
    ("grids", "group"),
    [
        (("01/10", "10/01", "9", "9"), "same/kept"),
        (("011/000", "01", "01/01", "10"), "smaller/kept"),
        (("01", "0101", "01", "01/10"), "larger/kept"),
        # Fewer rows, more columns.
        (("01/10", "0110", "01/11", "0111"), "varying/kept"),
        # One pair keeps its shape.
        (("01/10", "01", "01", "01"), "varying/kept"),
        (("01", "01/01", "01", "01"), "varying/kept"),
        (("011", "01", "01", "0101"), "varying/kept"),
        (("01", "10", "01", "00"), "same/reduced"),
        (("01", "01", "01", "02"), "same/new"),
        # 1 is a colour of the first input, not of the second.
        (("01", "00", "00", "01"), "same/new"),
    ],
)
def test_relations_of_outputs_to_inputs(grids: tuple[str, ...], group: str) -> None:
    assert group_tasks([task(*grids)]) == {"t": group}


def test_published_tasks_fall_into_the_groups_that_the_eye_sees() -> None:
    # 007bbfb7 repeats a 3x3 pattern in a 9x9 grid; 00d62c1b fills enclosed cells with a new
    # colour; 67a3c6ac mirrors; 0b148d64 cuts out one quarter of the grid
    ids = ("007bbfb7", "00d62c1b", "67a3c6ac", "0b148d64")
    assert group_tasks(load_tasks(DataConfig(tasks=ids)), None) == {
        "007bbfb7": "larger/kept",
        "00d62c1b": "same/new",
        "67a3c6ac": "same/kept",
        "0b148d64": "smaller/reduced",
    }


def test_taxonomy_names_the_groups_and_counts_unlisted_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taxonomy = tmp_path / "t.json"
    taxonomy.write_text('{"a": "S1", "b": "C1", "elsewhere": "L1"}')
    tasks = [task("1", "1", id_=id_) for id_ in "abcd"]
    with caplog.at_level(logging.WARNING):
        groups = group_tasks(tasks, taxonomy)
    assert groups == {"a": "S1", "b": "C1", "c": "unlisted", "d": "unlisted"}
    (record,) = caplog.records
    assert f"{taxonomy}: 2 of 4 tasks are not listed: c and d" in record.getMessage()


def test_malformed_taxonomy_is_refused(tmp_path: Path) -> None:
    taxonomy = tmp_path / "t.json"
    for content, fault in (('["a"]', "expected {task id: group}"), ('{"a": 3}', "got `int`")):
        taxonomy.write_text(content)
        with pytest.raises(DataError, match=f"{taxonomy}: .*{fault}"):
            group_tasks([], str(taxonomy))
