"""A server of `/embeddings` on loopback."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
