"""What a run would cost, against runs that were made."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raylab.label.config.jobs import AnnotateConfig
from raylab.label.input.cases import select_cases
from raylab.label.on_ray.annotate import run_annotate
from raylab.label.pages.progress import log_forecast, print_forecast
from raylab.label.protocol.dry_run import Amounts, RoleForecast, forecast
from raylab.label.protocol.protocol import annotate
from raylab.label.protocol.settings import protocol_settings
from raylab.llm.client import Client
from raylab.llm.config import Budget
from tests.label.protocol.outcomes import CODEBOOK
from tests.label.review.office import annotation
from tests.llm.scripted_server import Answer, Call, Model, ScriptedServer, completion
from tests.llm.test_client import Notebook, awaited

AGREE = "[[gold=Lrn;a=Lrn;b=Lrn;eval_a=92;eval_b=92]]"
DIFFER = "[[gold=Lrn;a=Lrn;b=Evo;eval_a=92;eval_b=60;adj=b]]"
THREE = "[[gold=Lrn;a=Lrn;b=Evo;c=Sym;eval_a=92;eval_b=60;eval_c=60;adj=c]]"
THREE_MODELS = "llm.annotators=[{model: quux-a}, {model: quux-b}, {model: quux-c}]"
ROLES = {
    **{f"quux-{name.lower()}": f"annotator {name}" for name in "ABC"},
    "quux-judge": "evaluator",
    "quux-chair": "adjudicator",
}


def config(tmp_path: Path, base_url: str, mark: str, *overrides: str) -> AnnotateConfig:
    """Five distinct descriptions and one that comes twice."""
    common = {"candidate": {"code": "Lrn"}}
    rows = [{"id": f"c{n}", "description": f"System {n % 5}. {mark}"} | common for n in range(6)]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prices = "llm.prices={quux-a: {input: 1, output: 10}, quux-b: {input: 1, output: 10}}"
    shared = (f"cases.path='{path}'", "protocol.policy=lenient", prices)
    return annotation(tmp_path / "runs", base_url, *shared, *overrides)


def unclear(call: Call) -> Answer:
    """Answers each question readably in its second turn only."""
    is_again = any(turn["role"] == "assistant" for turn in call.body["messages"])
    return Model()(call) if is_again else completion(call, "I would rather not say.")


async def count_calls(chosen: AnnotateConfig, server: ScriptedServer) -> dict[str, Counter[str]]:
    """Calls of a run by role, and the bytes sent for them."""
    settings = protocol_settings(chosen, "", CODEBOOK)
    async with Client(chosen.llm, Notebook()) as client:
        for generation, case in select_cases(chosen, CODEBOOK):
            await annotate(case, client, settings, generation)
    calls, sizes = Counter[str](), Counter[str]()
    for call in server.calls:
        role = ROLES[call.body["model"]]
        calls[role] += 1
        sizes[role] += int(call.headers["Content-Length"])
    return {"calls": calls, "bytes": sizes}


@awaited
@pytest.mark.parametrize(
    ("end", "mark", "answer", "overrides"),
    [
        ("least", AGREE, None, []),
        # By this seed both cases of the equal descriptions show their answers in another order.
        ("most", DIFFER, unclear, ["protocol.seed=4"]),
        ("most", THREE, unclear, [THREE_MODELS, "protocol.seed=4"]),
    ],
)
async def test_the_ends_are_runs_in_which_all_agree_and_nothing_is_clear(
    tmp_path: Path,
    end: str,
    mark: str,
    answer: Callable[[Call], Answer] | None,
    overrides: list[str],
) -> None:
    async with ScriptedServer(answer or Model()) as server:
        chosen = config(tmp_path, server.base_url, mark, *overrides)
        rows = forecast(chosen, CODEBOOK)
        assert server.calls == []
        run = await count_calls(chosen, server)
    for row in rows:
        size = run["bytes"][row.role]
        # This adjudicator gives equal descriptions equal answers, which are confirmed once.
        spared = 2 * (end == "most" and row.role == "evaluator")
        assert run["calls"][row.role] == getattr(row, end).calls - spared
        assert row.least.prompt_tokens <= -(-size // 4) and size / 3 <= row.most.prompt_tokens
        assert row.least.calls <= row.most.calls
    if end == "least":  # Equal descriptions are asked about once.
        assert [row.least.calls for row in rows] == [5, 5, 10, 0]


def test_cost_is_that_of_the_tokens(tmp_path: Path) -> None:
    rows = {row.role: row for row in forecast(config(tmp_path, "http://h/v1", AGREE), CODEBOOK)}
    row = rows["annotator A"]
    # Replies of 100 tokens and of max_tokens=1024, at 10 a million, and requests at 1.
    assert (row.least.reply_tokens, row.most.reply_tokens) == (5 * 100, 10 * 1024)
    for end, tokens in ((row.least, 500), (row.most, 10_240)):
        assert end.cost == pytest.approx((end.prompt_tokens + 10 * tokens) / 1e6)
    assert rows["evaluator"].least.cost is rows["evaluator"].most.cost is None
    uncapped = config(tmp_path, "http://h/v1", AGREE, "llm.annotators.0.max_tokens=null")
    row = forecast(uncapped, CODEBOOK)[0]
    assert (row.least.reply_tokens, row.most.reply_tokens, row.most.cost) == (500, None, None)


@pytest.mark.parametrize(
    ("override", "roles"),
    [
        ("protocol.adjudicator=human", ["annotator A", "annotator B", "evaluator"]),
        ("protocol.stages=evaluate", ["evaluator"]),
    ],
)
def test_only_roles_that_are_asked_are_counted(
    tmp_path: Path, override: str, roles: list[str]
) -> None:
    rows = forecast(config(tmp_path, "http://h/v1", AGREE, override), CODEBOOK)
    assert [row.role for row in rows] == roles


def test_a_dry_run_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Nobody listens there, and no key is needed to count.
    chosen = config(
        tmp_path,
        "http://127.0.0.1:9/v1",
        AGREE,
        "dry_run=true",
        "llm.endpoints.default.api_key_env=RAYLAB_NO_SUCH_KEY",
    )
    run_annotate(chosen)
    assert not (tmp_path / "runs").exists()
    output: Any = capsys.readouterr().out
    assert "annotator A" in output and "5 to 10" in output and "no price" in output


def test_the_totals_fit_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        RoleForecast("a", "M", Amounts(5, 100, 50, 0.25), Amounts(10, 200, 900, 0.5)),
        RoleForecast("b", "N", Amounts(5, 100, 50, 1.0), Amounts(30, 200, 900, 2.0)),
    ]
    log_forecast(rows, Budget(tokens=300, money=1.25))
    log_forecast([replace(rows[0], most=Amounts(10, 200, None, None))], Budget())
    priced, unpriced = capsys.readouterr().out.splitlines()
    print_forecast(rows, Budget(tokens=299, money=1.2))
    *_, total, _, tokens, money = capsys.readouterr().out.splitlines()
    assert (
        "warning: llm.budget.tokens=299 ends the run early" in tokens and "about 300 or" in tokens
    )
    assert "warning: llm.budget.money=1.2 ends the run early" in money and "1.25 or more" in money
    assert total.replace("│", " ").split() == (
        "all 10 to 40 200 to 400 100 to 1,800 1.25 to 2.5".split()
    )
    assert priced.startswith("estimate: 10 to 40 calls, cost 1.25 to 2.5; dry_run=true shows")
    assert unpriced.startswith("estimate: 5 to 10 calls; dry_run=true")
