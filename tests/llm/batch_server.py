"""A scripted server with files and batches, their faults, and a ledger of what it bills."""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from aiohttp import web

from tests.llm.scripted_server import Answer, Behaviour, ScriptedServer, failure, respond, serve

Json = dict[str, Any]
GONE = web.HTTPNotFound
TOKENS = ("prompt_tokens", "completion_tokens")
TERMINAL = ("completed", "failed", "expired", "cancelled")


class BatchServer(ScriptedServer):
    """A server of chat completions, live or in batches.

    Args:
        behave: What it does with a call.
        faults: For each kind of request (upload, create, list, retrieve, delete, read) what happens
            to the first of them, the second and so on:

            - `before`: the connection is cut before anything is done.
            - `lost`: it is done, and the connection is cut.
            - `torn`: it is done, and half of the answer comes.
            - a number: that HTTP status, and nothing is done.
        ends: For each batch in turn how it ends: `completed`; `expired` or `cancelled` after the
            first half of its calls; `failed`, `failed LINE` or `failed limit` before any;
            `no file`, `forgotten`, `twice` (answers stand twice in the file), `uncounted`.
        polls: Looks at a batch before it ends.
        takes_batches: False for a server without batches.

    Attributes:
        billed: Number of times that each call was answered in batches, by its custom id.
        tokens: Tokens billed in batches.
    """

    def __init__(
        self,
        behave: Behaviour | None = None,
        faults: Mapping[str, Sequence[str]] | None = None,
        ends: Sequence[str] = (),
        polls: int = 2,
        takes_batches: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(behave, **more)
        self.faults = {kind: list(each) for kind, each in (faults or {}).items()}
        self.ends, self.polls, self.takes_batches = list(ends), polls, takes_batches
        self._numbers = count()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Json] = {}
        self.billed: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    def route(self, app: web.Application) -> None:
        super().route(app)
        if not self.takes_batches:
            return
        router = app.router
        router.add_post("/v1/files", self._handler("upload", self._upload))
        router.add_delete("/v1/files/{id}", self._handler("delete", self._delete))
        router.add_get("/v1/files/{id}/content", self._handler("read", self._read))
        router.add_post("/v1/batches", self._handler("create", self._create))
        router.add_get("/v1/batches", self._handler("list", self._list))
        router.add_get("/v1/batches/{id}", self._handler("retrieve", self._retrieve))
        router.add_get("/ledger", self._ledger)

    def _handler(self, kind: str, work: Any) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.requests[kind] += 1
            left = self.faults.get(kind, [])
            fault = left.pop(0) if left else ""
            if fault.isdigit():
                return await respond(request, failure(int(fault), f"scripted {fault}"))
            done = {} if fault == "before" else await work(request)
            body = done if isinstance(done, bytes) else json.dumps(done).encode()
            cut = {"before": "before", "lost": "before", "torn": "body"}.get(fault, "")
            return await respond(request, Answer(body, cut=cut))

        return handle

    async def _upload(self, request: web.Request) -> Json:
        form = await request.post()
        content: Any = form["file"]
        assert form["purpose"] == "batch"
        id = f"file-{next(self._numbers)}"
        self.files[id] = content.file.read()
        return {"id": id, "object": "file"}

    async def _delete(self, request: web.Request) -> Json:
        id = request.match_info["id"]
        if self.files.pop(id, None) is None:
            raise GONE
        return {"id": id, "deleted": True}

    async def _read(self, request: web.Request) -> bytes:
        if (content := self.files.get(request.match_info["id"])) is None:
            raise GONE
        return content

    async def _create(self, request: web.Request) -> Json:
        asked = await request.json()
        if asked["input_file_id"] not in self.files:
            raise web.HTTPBadRequest(text=json.dumps({"error": {"message": "no such file"}}))
        id = f"batch-{len(self.batches)}"
        end = self.ends.pop(0) if self.ends else "completed"
        batch = {"id": id, "object": "batch", "status": "in_progress", "polls": 0, "end": end}
        self.batches[id] = {**batch, **asked, "created_at": len(self.batches)}
        return self.batches[id]

    async def _list(self, request: web.Request) -> Json:
        newest = [*reversed(self.batches.values())]
        after = request.query.get("after")
        first = 1 + [batch["id"] for batch in newest].index(after) if after else 0
        # Fewer a page than are asked for, so that there are several.
        page = newest[first : first + 2]
        has_more = first + 2 < len(newest)
        return {"object": "list", "data": page, "has_more": has_more}

    async def _retrieve(self, request: web.Request) -> Json:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            raise GONE
        batch["polls"] += 1
        if batch["polls"] > self.polls and batch["status"] not in TERMINAL:
            self._finish(batch)
        if batch["end"] == "forgotten" and batch["status"] in TERMINAL:
            raise GONE
        return batch

    def _finish(self, batch: Json) -> None:
        lines = self.files[batch["input_file_id"]].splitlines()
        end, _, detail = batch["end"].partition(" ")
        batch["status"] = end if end in TERMINAL else "completed"
        if end == "failed":
            error: Json = {"code": "invalid_request", "message": "scripted: this line is bad"}
            if detail == "limit":
                error = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}
            line = int(detail) if detail.isdigit() else None
            batch["errors"] = {"object": "list", "data": [{**error, "line": line}]}
            return
        answered = len(lines) if batch["status"] == "completed" else len(lines) // 2
        right, wrong = list[str](), list[str]()
        for place, line in enumerate(lines):
            row = json.loads(line)
            response = self._answer(row) if place < answered else None
            expired = {"code": "batch_expired"} if response is None else None
            is_right = response is not None and response["status_code"] == 200
            content = {"custom_id": row["custom_id"], "response": response, "error": expired}
            (right if is_right else wrong).append(json.dumps(content))
        counts = {"total": len(lines), "completed": len(right), "failed": len(wrong)}
        if end != "uncounted":
            batch["request_counts"] = counts
        for name, rows in (("output_file_id", right), ("error_file_id", wrong)):
            if rows:
                batch[name] = f"{batch['id']}-{name}"
                if end == "twice":
                    rows = [*rows, *rows]
                if batch["end"] != "no file":
                    self.files[batch[name]] = "".join(f"{row}\n" for row in rows).encode()

    def _answer(self, row: Json) -> Json:
        call = self.receive(json.dumps(row["body"]).encode(), {})
        answer = self.behave(call)
        try:
            body = json.loads(answer.body)
        except ValueError:
            body = answer.body.decode()
        if answer.status == 200:
            self.billed[row["custom_id"]] += 1
            usage = body.get("usage", {}) if isinstance(body, dict) else {}
            self.tokens.update({key: usage.get(key, 0) for key in TOKENS})
        return {"status_code": answer.status, "body": body}

    async def _ledger(self, request: web.Request) -> web.Response:
        live = len(self.calls) - self.billed.total()
        ledger = {"billed": self.billed, "tokens": self.tokens, "batches": len(self.batches)}
        return web.json_response({**ledger, "other": live})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=json.loads, default={})
    parser.add_argument("--ends", type=json.loads, default=[])
    options = parser.parse_args()

    asyncio.run(serve(BatchServer(faults=options.faults, ends=options.ends, polls=1)))


if __name__ == "__main__":
    main()
