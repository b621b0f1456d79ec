"""A chat server on loopback whose replies and failures depend only on what it is asked.

`python tests/llm/scripted_server.py --fault-rate 0.2 --log calls.jsonl` prints its base URL and
serves until it is killed or its standard input is closed. Tests may also run it in their own event
loop, with replies of their own.

What a model would answer is taken from a mark in the description, such as
`[[gold=Lrn;a=Lrn;b=Evo/Lrn;eval_a=92;eval_b=60;adj=b;eval_adj=88]]`: the codes of annotators A, B
and so on, the scores that the evaluator gives each of them, the adjudicator's choice (an annotator
or a code), and the score of that. Whatever is left out follows from gold, or from a hash of the
description. A code that is not the one marked for its annotator, as after a fault, is scored by
whether it is gold.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from aiohttp import web

Json = dict[str, Any]

ROOTS = ("Lrn", "Evo", "Sym", "Prb", "Sch", "Ctl", "Swm")
FIELDS = "Rep=param; Obj=loss; Data=sim; Time=iter; Human=low"
MARK = re.compile(r"\[\[([^\[\]]*=[^\[\]]*)\]\]")
ANNOTATORS = "abcdefg"
SIDE = re.compile(rf"said by ([{ANNOTATORS}]|adj)\b")
"""Written into every rationale, so that the evaluator knows whose code it sees."""

SHOWN_CODE = re.compile(r"^Candidate code: OPT=([A-Za-z+/]+)", re.MULTILINE)

TRANSPORT_FAULTS = ("429", "500", "timeout", "cut", "cut_body")
CONTENT_FAULTS = ("prose", "broken_json", "wrong_roots", "unknown_root")
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
MOST_REPEATS = 2
"""Attempts of a call that a transport fault can fail, one after the other."""
RETRY_AFTER = 0.2


# What is asked


@dataclass(frozen=True)
class Call:
    """One attempt as the server received it.

    Attributes:
        body: the request.
        hash: SHA-256 of the body with sorted keys: equal for all attempts of equal calls.
        attempt: how often a call of this hash has come, this time included.
        headers: of the request.
    """

    body: Json
    hash: str
    attempt: int
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n".join(message["content"] for message in self.body["messages"])

    @property
    def schema(self) -> Json:
        form = self.body.get("response_format", {})
        return form.get("json_schema", {}).get("schema", {})

    def draw(self, what: str) -> float:
        """Uniform in [0, 1) by the content of the call."""
        digest = hashlib.sha256(f"{what}:{self.hash}".encode()).digest()
        return int.from_bytes(digest[:6]) / 2**48


@dataclass(frozen=True)
class Mark:
    """What the scripted models think of a case: codes and scores by side (a, b, ... and adj)."""

    gold: str
    codes: Mapping[str, str]
    scores: Mapping[str, int]

    @classmethod
    def read(cls, text: str) -> "Mark":
        """The mark in a text, or one by a hash of its longest line."""
        match = MARK.search(text)
        pairs = re.findall(r"(\w+)=([^;]+)", match[1]) if match else []
        values = {key: value.strip() for key, value in pairs}
        line = max(text.splitlines(), key=len, default="")
        digest = hashlib.sha256(line.encode(errors="replace")).digest()
        gold = values.get("gold", ROOTS[digest[0] % len(ROOTS)])
        codes = {side: values.get(side, gold) for side in (*ANNOTATORS, "adj")}
        codes["adj"] = codes.get(codes["adj"], codes["adj"])
        scores = {
            side: int(values.get(f"eval_{side}", _score(codes[side], gold))) for side in codes
        }
        return cls(gold, codes, scores)


def _score(code: str, gold: str) -> int:
    return 92 if code == gold else 40


# What is answered


def classify(call: Call) -> Json:
    # B has a model whose name ends in -b, or else the seed 2, and so on.
    model, seed = str(call.body["model"]), call.body.get("seed") or 1
    side = model[-1] if re.search(f"-[{ANNOTATORS}]$", model) else ANNOTATORS[(seed - 1) % 7]
    return coded(Mark.read(call.text).codes[side], side)


def evaluate(call: Call) -> Json:
    mark, said, shown = Mark.read(call.text), SIDE.search(call.text), SHOWN_CODE.search(call.text)
    side = said[1] if said else "a"
    code, score = mark.codes[side], mark.scores[side]
    if shown and shown[1] != code:
        score = _score(shown[1], mark.gold)
    verdict = "PASS" if score >= 85 else "WEAK_PASS" if score >= 70 else "FAIL"
    issues = [] if score >= 70 else ["mechanism"]
    return {"summary": "As scripted.", "issues": issues, "score": score, "verdict": verdict}


def adjudicate(call: Call) -> Json:
    mark = Mark.read(call.text)
    order = [mark.codes[match[1]] for match in SIDE.finditer(call.text)]
    code = mark.codes["adj"]
    choice = PLACES[order.index(code)] if code in order else "synthesis"
    return {"choice": choice, **coded(code, "adj")}


def coded(code: str, side: str) -> Json:
    reason = f"The mechanism is plain, said by {side}"
    return {"rationale": reason, "opt": f"OPT={code}; {FIELDS}"}


def drawn(schema: Json, call: Call, what: str) -> Any:
    """A value of a schema, by the description in a call."""
    line = re.search(r"<description id=.*>\n(.*)", call.text)
    digest = hashlib.sha256(f"{what}:{line and line[1]}:{schema}".encode()).digest()[0]
    match schema["type"]:
        case "object":
            parts = schema["properties"].items()
            return {key: drawn(part, call, f"{what}.{key}") for key, part in parts}
        case "array":
            return [drawn(schema["items"], call, what)]
        case "integer":
            return schema["minimum"] + digest % (schema["maximum"] - schema["minimum"] + 1)
        case _:
            return schema["enum"][digest % len(schema["enum"])] if "enum" in schema else "Some text"


def answer_of_any(call: Call) -> Json:
    """A reply by any other codebook; B differs from A in a fourth of the texts."""
    schemas = call.schema.get("properties", {})
    values = {key: drawn(part, call, key) for key, part in schemas.items()}
    last = [*schemas][-1] if schemas else ""
    if call.schema.get("title", "").endswith("_evaluation"):
        return values | {"issues": [], "score": 90, "verdict": "PASS"}
    if (
        str(call.body["model"]).endswith("-b")
        and drawn({"enum": [*range(4)], "type": ""}, call, "b") == 0
    ):
        values[last] = drawn(schemas[last], call, "other")
    return values | ({"choice": "synthesis"} if "choice" in values else {})


ROLES: dict[str, Callable[[Call], Json]] = {
    "opt_adjudication": adjudicate,
    "opt_evaluation": evaluate,
    "opt_classification": classify,
}
"""The reply of a role by the title of its schema."""


def spoiled(text: str, fault: str) -> str:
    """A reply with a content fault."""
    match fault:
        case "prose":
            return "I would rather talk about the weather, which is fine today."
        case "broken_json":
            return text[: len(text) * 2 // 3]
        case "wrong_roots":
            following = dict(zip(ROOTS, (*ROOTS[1:], ROOTS[0]), strict=True))
            return re.sub("|".join(ROOTS), lambda root: following[root[0]], text)
        case "unknown_root":
            return re.sub("|".join(ROOTS), "Qnt", text)
        case _:
            return text


@dataclass(frozen=True)
class Answer:
    """What the server does with one attempt.

    Attributes:
        fault: name of the fault that this is; empty if it is none.
        hangs: whether it sends nothing at all until the client goes away.
        cut: whether it closes the connection: before anything, or in the middle of the body.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    hangs: bool = False
    cut: str = ""


def completion(call: Call, text: str, fault: str = "", **changes: Any) -> Answer:
    """A chat completion with this text; `changes` replace fields of its body."""
    tokens = {"prompt_tokens": len(call.text) // 4, "completion_tokens": len(text) // 4 + 1}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = {
        "model": f"{call.body['model']}-scripted",
        "system_fingerprint": "fp_1",
        "choices": [choice],
        "usage": {**tokens, "total_tokens": sum(tokens.values())},
    }
    return Answer(json.dumps(body | changes).encode(), fault=fault)


def failure(status: int, message: str, **fields: Any) -> Answer:
    """An error in the form of OpenAI's."""
    headers = {"Retry-After": str(fields.pop("retry_after"))} if "retry_after" in fields else {}
    body = {"error": {"message": message, "type": "error", "param": None, "code": None} | fields}
    return Answer(json.dumps(body).encode(), status, headers, fault=str(status))


Behaviour = Callable[[Call], Answer]


@dataclass(frozen=True)
class Model:
    """Answers as marked, with faults drawn by the content of the call.

    Half of the faulty calls fail in transport, once or twice, and are answered after that; the
    others are answered with a content fault however often they are made.
    """

    fault_rate: float = 0.0
    """Share of the calls that have a fault."""

    def fault_of(self, call: Call) -> str:
        """The fault of this attempt; empty for none."""
        if call.draw("faulty") >= self.fault_rate:
            return ""
        kind = (TRANSPORT_FAULTS, CONTENT_FAULTS)[int(call.draw("kind") * 2)]
        fault = kind[int(call.draw("fault") * len(kind))]
        repeats = 1 + int(call.draw("repeats") * MOST_REPEATS)
        return "" if fault in TRANSPORT_FAULTS and call.attempt > repeats else fault

    def __call__(self, call: Call) -> Answer:
        fault = self.fault_of(call)
        if fault in ("429", "500"):
            pause = {"retry_after": RETRY_AFTER} if fault == "429" else {}
            return failure(int(fault), "scripted", **pause)
        if fault == "timeout":
            return Answer(fault=fault, hangs=True)
        answers = ROLES.get(call.schema.get("title", ""), answer_of_any)(call)
        text = json.dumps({key: answers[key] for key in call.schema.get("properties", answers)})
        cut = {"cut": "before", "cut_body": "body"}.get(fault, "")
        return replace(completion(call, spoiled(text, fault), fault), cut=cut)


def in_turn(*answers: Answer | Callable[[Call], Answer]) -> Behaviour:
    """The first answer to the first attempt that comes, and so on; the last one for ever."""
    left = list(answers)

    def behave(call: Call) -> Answer:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer(call) if callable(answer) else answer

    return behave


# The server


async def respond(request: web.Request, answer: Answer) -> web.StreamResponse:
    """Sends an answer, or as much of it as comes before the connection is cut."""
    headers = {"Content-Type": "application/json", **answer.headers}
    if not (answer.cut or answer.hangs):
        return web.Response(body=answer.body, status=answer.status, headers=headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = len(answer.body)
    if answer.cut == "body":
        await response.prepare(request)
        await response.write(answer.body[: len(answer.body) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response


class ScriptedServer:
    """Serves a behaviour on loopback; an asynchronous context manager.

    Args:
        behave: What it does with an attempt.
        latency: Seconds before each answer.
        log: File to which a line is appended for each attempt received and each one answered.
        key: Key that it demands; None takes any or none.
    """

    def __init__(
        self,
        behave: Behaviour | None = None,
        latency: float = 0.0,
        log: Path | None = None,
        key: str | None = None,
    ) -> None:
        self.behave = behave or Model()
        self.calls: list[Call] = []
        self.in_flight = 0
        self.base_url = ""
        self._sends: Counter[str] = Counter()
        self._latency = latency
        self._key = key
        self._log = None if log is None else log.open("ab", buffering=0)
        self._closing = False

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 2**20)
        self.route(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        await self._runner.cleanup()
        if self._log is not None:
            self._log.close()

    def route(self, app: web.Application) -> None:
        """Adds what the server serves."""
        app.router.add_post("/v1/chat/completions", self._complete)

    def receive(self, content: bytes, headers: Mapping[str, str]) -> Call:
        """Takes note of an attempt."""
        body = json.loads(content)
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        self._sends[digest] += 1
        call = Call(body, digest, self._sends[digest], headers)
        self.calls.append(call)
        return call

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        key = request.headers.get("Authorization", "")
        if self._key is not None and key != f"Bearer {self._key}":
            wrong = failure(401, f"Incorrect API key provided: {key}", code="invalid_api_key")
            return await respond(request, wrong)
        call = self.receive(content, request.headers)
        self._note(call, "received")
        self.in_flight += 1
        try:
            answer = self.behave(call)
            await asyncio.sleep(self._latency)
            while answer.hangs and request.transport is not None and not self._closing:
                await asyncio.sleep(0.02)
            self._note(call, "answered", fault=answer.fault, status=answer.status)
            return await respond(request, answer)
        finally:
            self.in_flight -= 1

    def _note(self, call: Call, event: str, **more: object) -> None:
        if self._log is not None:
            line = {"event": event, "hash": call.hash}
            self._log.write(json.dumps(line | more).encode() + b"\n")


@contextlib.contextmanager
def server_process(*arguments: str, module: str = "tests.llm.scripted_server") -> Generator[str]:
    """The server in a process of its own, with command-line arguments; its base URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(120)
        process.stdout.close()


async def serve(server: ScriptedServer) -> None:
    """Serves until the standard input of this process ends; prints the base URL first."""
    async with server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--fault-rate", type=float, default=0.0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--key-env", help="variable that holds the key to demand")
    options = parser.parse_args()
    model = Model(options.fault_rate)
    key = os.environ[options.key_env] if options.key_env else None

    asyncio.run(serve(ScriptedServer(model, options.latency_ms / 1000, options.log, key)))


if __name__ == "__main__":
    main()
