"""Vectors of texts from the embedding model of an endpoint, kept by batch in a run."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from raylab.core.errors import EndpointError
from raylab.core.files import Place
from raylab.llm.config import EmbeddingModel
from raylab.llm.endpoints import Redactor, find_key

if TYPE_CHECKING:
    from openai import OpenAI

BATCH = 64
"""Texts in a request."""
LONGEST = 8000
"""Most characters of a text that are sent; models refuse texts of more than about 8,000 tokens."""
CONCURRENCY = 8
RETRIES = 5
TIMEOUT = 120.0
"""Seconds for one attempt."""

Vectors = NDArray[np.float64]


class _Entry(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Entry]


def embed_texts(
    texts: Sequence[str],
    model: EmbeddingModel,
    kept: Place,
    progress: Callable[[int], None] = lambda count: None,
) -> Vectors:
    """Returns the vector of each text, shape (texts, dimensions).

    Args:
        texts: Texts, of which only the first 8,000 characters are sent.
        model: The model and its endpoint.
        kept: Directory of answered batches, so that none is asked for twice.
        progress: Called with the number of texts of each batch that is done.

    Raises:
        ConfigError: The key is not in the environment.
        EndpointError: The endpoint refuses, does not answer, or answers with something else.
    """
    # Takes a second to import, and few jobs embed.
    from openai import DefaultHttpxClient, OpenAI, OpenAIError

    key = find_key("embeddings", model).get_secret_value()
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    with (
        DefaultHttpxClient(follow_redirects=False) as http,
        ThreadPoolExecutor(CONCURRENCY) as pool,
    ):
        client = OpenAI(
            base_url=model.base_url,
            api_key=key or "none",
            max_retries=RETRIES,
            timeout=TIMEOUT,
            http_client=http,
        )
        try:
            vectors: list[Vectors] = []
            for embedded in pool.map(
                lambda batch: _embed_batch(batch, model, client, kept), batches
            ):
                vectors.append(embedded)
                progress(len(embedded))
        except (OpenAIError, ValueError) as error:
            raise EndpointError(
                f"embeddings of {model.model} at {model.base_url}: {Redactor([key])(str(error))}; "
                "resume=true goes on with what was answered"
            ) from error
    if len({batch.shape[1] for batch in vectors}) > 1:
        raise EndpointError(f"{model.model} at {model.base_url} gives vectors of several lengths")
    return np.concatenate(vectors) if vectors else np.zeros((0, 0))


def _embed_batch(
    texts: Sequence[str], model: EmbeddingModel, client: "OpenAI", kept: Place
) -> Vectors:
    cut = [text[:LONGEST] for text in texts]
    request = json.dumps([model.base_url, model.model, model.dimensions, cut])
    place = kept / f"{hashlib.sha256(request.encode()).hexdigest()}.npy"
    if place.exists():
        return np.load(io.BytesIO(place.read()), allow_pickle=False)
    from openai import omit

    reply = client.embeddings.with_raw_response.create(
        model=model.model, input=cut, encoding_format="float", dimensions=model.dimensions or omit
    )
    entries = msgspec.json.decode(reply.content, type=_Answer).data
    vectors = np.array([entry.embedding for entry in sorted(entries, key=lambda e: e.index)])
    if vectors.shape[:1] != (len(cut),) or vectors.ndim != 2:
        raise ValueError(f"{len(cut)} texts were sent, and an array {vectors.shape} came back")
    buffer = io.BytesIO()
    np.save(buffer, vectors)
    place.write(buffer.getvalue())
    return vectors
