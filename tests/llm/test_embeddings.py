"""Vectors from a real server of `/embeddings` on loopback."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.core.errors import ConfigError, EndpointError
from raylab.core.files import Place
from raylab.llm.config import EmbeddingModel
from raylab.llm.embeddings import embed_texts
from tests.llm.embedding_server import Answer, lengths, serving

KEY = "sk-key-of-this-test-0123456789"


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
