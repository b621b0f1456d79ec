"""Vectors from a real server of `/embeddings` on loopback."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.config.llm import EmbeddingModel
from raylab.errors import ConfigError, EndpointError
from raylab.files import Place
from raylab.llm.embeddings import embed_texts

KEY = "sk-key-of-this-test-0123456789"
Answer = Callable[[list[str]], tuple[int, Any]]


def lengths(texts: list[str]) -> tuple[int, Any]:
    """Answers with the length of each text and 1, the last text first."""
    entries = [
        {"object": "embedding", "index": number, "embedding": [float(len(text)), 1.0]}
        for number, text in enumerate(texts)
    ]
    return 200, {"object": "list", "model": "m", "data": entries[::-1], "usage": {}}


@contextmanager
def serving(answer: Answer) -> Generator[tuple[str, list[list[str]]]]:
    """Serves embeddings; yields the base URL and the texts of each request."""
    asked: list[list[str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["input"])
            status, content = answer(body["input"])
            payload = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", asked
        finally:
            server.shutdown()
            thread.join()


def model(url: str, **more: Any) -> EmbeddingModel:
    return EmbeddingModel(base_url=url, model="m", **more)


def test_vectors_stand_in_the_order_of_the_texts_and_none_is_paid_for_twice(tmp_path: Path) -> None:
    texts = ["x" * length for length in range(1, 101)]
    with serving(lengths) as (url, asked):
        vectors = embed_texts(texts, model(url), Place.at(tmp_path))
        again = embed_texts(texts, model(url), Place.at(tmp_path))
    assert vectors.tolist() == [[length, 1.0] for length in range(1, 101)]
    assert np.array_equal(vectors, again)
    assert sorted(len(batch) for batch in asked) == [36, 64]


def test_only_the_batch_that_failed_is_asked_for_again(tmp_path: Path) -> None:
    texts = ["x" * length for length in range(1, 101)]
    healthy = False

    def answer(batch: list[str]) -> tuple[int, Any]:
        return lengths(batch) if healthy or batch[0] == "x" else (400, {})

    with serving(answer) as (url, asked):
        with pytest.raises(EndpointError, match="resume=true"):
            embed_texts(texts, model(url), Place.at(tmp_path))
        healthy = True
        assert len(embed_texts(texts, model(url), Place.at(tmp_path))) == 100
    assert sorted(len(batch) for batch in asked) == [36, 36, 64]


@pytest.mark.parametrize(
    "answer",
    [
        lambda texts: (401, {"error": {"message": f"Incorrect API key: {KEY}"}}),
        lambda texts: (307, {}),
        lambda texts: lengths(texts[1:]),
        lambda texts: (200, {"data": [{"index": 0, "embedding": [float("nan")]}]}),
        lambda texts: (200, {"data": [{"index": 0, "embedding": ["a"]}, {"index": 1}]}),
        lambda texts: (200, "no object"),
    ],
)
def test_what_is_no_vector_is_one_error_without_the_key(
    tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDINGS_KEY", KEY)
    with serving(answer) as (url, _), pytest.raises(EndpointError) as error:
        embed_texts(["a", "b"], model(url, api_key_env="EMBEDDINGS_KEY"), Place.at(tmp_path))
    assert url in str(error.value) and KEY not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_missing_key_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    with serving(lengths) as (url, asked), pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        embed_texts(["a"], model(url, api_key_env="NO_SUCH_KEY"), Place.at(tmp_path))
    assert not asked
