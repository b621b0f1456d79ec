"""The key of a call, under which its answer is archived."""

from dataclasses import fields, replace

import pytest

from raylab.llm.chat import ChatRequest, Message

REQUEST = ChatRequest(
    endpoint="main",
    base_url="http://somewhere/v1",
    model="m",
    messages=(Message("system", "Answer."), Message("user", "Which?")),
    parameters={"temperature": 0.5, "max_tokens": 30},
    seed=7,
)
CHANGES = {
    "base_url": "http://elsewhere/v1",
    "model": "n",
    "messages": REQUEST.messages[::-1],
    "parameters": {"temperature": 0.6, "max_tokens": 30},
    "seed": 8,
    "schema": {"type": "object"},
    "salt": "again",
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_a_call_changes_its_key(name: str) -> None:
    assert replace(REQUEST, **{name: CHANGES[name]}).key != REQUEST.key


def test_the_local_name_of_an_endpoint_and_the_order_of_parameters_change_no_key() -> None:
    assert {field.name for field in fields(ChatRequest)} - CHANGES.keys() == {"endpoint", "lane"}
    same = replace(REQUEST, parameters=dict(reversed(list(REQUEST.parameters.items()))))
    assert replace(same, endpoint="other").key == REQUEST.key
