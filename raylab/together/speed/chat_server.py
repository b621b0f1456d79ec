"""A chat server of fixed latency, and cases on which its answers agree.

`python -m raylab.together.speed.chat_server LATENCY` prints its address and serves until its
standard input is closed.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig

STYLE = "maximal"
VERDICT: dict[str, Any] = {"issues": [], "score": 95, "verdict": "PASS"}
TEXTS = {
    "rationale": "Parameters of a fixed model follow the gradient of a loss.",
    "summary": "The code names the mechanism.",
}
"""Texts by key of the reply. Both annotators agree, with different rationales, and the evaluator
accepts, so a case takes four calls."""
ANNOTATORS = ("benchmark-a", "benchmark-b")
EVALUATOR = "benchmark-judge"
DESCRIPTION = (
    "System {number} fits the weights of a regression by stochastic gradient descent on shuffled "
    "mini-batches; workers compute gradients in parallel and a server averages them. "
)
REPEATS = 4
"""Repeats of the sentence, about 600 characters in all: a short paragraph."""


def write_cases(path: Path, count: int, salt: str) -> None:
    """Writes a JSONL file of `count` cases; a different salt makes different descriptions."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            description = DESCRIPTION.format(number=f"{salt}-{number}") * REPEATS
            file.write(json.dumps({"id": str(number), "description": description}) + "\n")


@contextmanager
def chat_server(latency: float) -> Generator[str]:
    """Serves in its own process while in use; yields the address."""
    command = [sys.executable, "-m", "raylab.together.speed.chat_server", str(latency)]
    # Its end closes the server's input.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


async def _serve(latency: float) -> None:
    prompts = choose_codebook(AnnotateConfig.model_construct()).prompts[STYLE]
    keys = dict.fromkeys(ANNOTATORS, prompts.classify.keys) | {EVALUATOR: prompts.evaluate.keys}
    bodies = {f'"{model}"'.encode(): _completion(keys[model], model) for model in keys}

    async def complete(request: web.Request) -> web.Response:
        content = await request.read()
        body = next(body for model, body in bodies.items() if model in content)
        await asyncio.sleep(latency)
        return web.Response(body=body, content_type="application/json")

    application = web.Application(client_max_size=1 << 24)
    application.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}/v1\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


def answer_of(keys: Sequence[str], model: str) -> str:
    """Returns the JSON reply of a model to a request for these keys."""
    codebook = choose_codebook(AnnotateConfig.model_construct())
    answers = {**VERDICT, codebook.prompts[STYLE].form.key: codebook.examples[-1]}
    return json.dumps(
        {key: f"{model}: {TEXTS[key]}" if key in TEXTS else answers[key] for key in keys}
    )


def _completion(keys: Sequence[str], model: str) -> bytes:
    message = {"role": "assistant", "content": answer_of(keys, model)}
    return json.dumps(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "benchmark",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050},
        }
    ).encode()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
