"""A scripted server with files and batches, their faults, and a ledger of what it bills."""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from aiohttp import web

from tests.llm.scripted_server import Behaviour, ScriptedServer, serve

Json = dict[str, Any]
GONE = web.HTTPNotFound
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
        drops: What it does not keep of a batch: `metadata`.
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
            if fault == "before":
                return self._cut(request)
            if fault.isdigit():
                raise_body = json.dumps({"error": {"message": f"scripted {fault}"}})
                return web.Response(status=int(fault), text=raise_body)
            body: bytes = await work(request)
            if fault == "lost":
                return self._cut(request)
            if fault == "torn":
                response = web.StreamResponse()
                response.content_length = len(body)
                await response.prepare(request)
                await response.write(body[: len(body) // 2])
                return self._cut(request, response)
            return web.Response(body=body, content_type="application/json")

        return handle

    def _cut(
        self, request: web.Request, response: web.StreamResponse | None = None
    ) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return response or web.Response()

    async def _upload(self, request: web.Request) -> bytes:
        form = await request.post()
        content: Any = form["file"]
        assert form["purpose"] == "batch"
        id = f"file-{next(self._numbers)}"
        self.files[id] = content.file.read()
        return json.dumps({"id": id, "object": "file"}).encode()

    async def _delete(self, request: web.Request) -> bytes:
        id = request.match_info["id"]
        if self.files.pop(id, None) is None:
            raise GONE
        return json.dumps({"id": id, "deleted": True}).encode()

    async def _read(self, request: web.Request) -> bytes:
        if (content := self.files.get(request.match_info["id"])) is None:
            raise GONE
        return content

    async def _create(self, request: web.Request) -> bytes:
        asked = await request.json()
        if asked["input_file_id"] not in self.files:
            raise web.HTTPBadRequest(text=json.dumps({"error": {"message": "no such file"}}))
        id = f"batch-{len(self.batches)}"
        end = self.ends.pop(0) if self.ends else "completed"
        batch = {"id": id, "object": "batch", "status": "in_progress", "polls": 0, "end": end}
        self.batches[id] = {**batch, **asked, "created_at": len(self.batches)}
        return self._shown(self.batches[id])

    async def _list(self, request: web.Request) -> bytes:
        newest = [*reversed(self.batches.values())]
        after = request.query.get("after")
        first = 1 + [batch["id"] for batch in newest].index(after) if after else 0
        # Fewer a page than are asked for, so that there are several.
        page = newest[first : first + 2]
        has_more = first + 2 < len(newest)
        return json.dumps({"object": "list", "data": page, "has_more": has_more}).encode()

    async def _retrieve(self, request: web.Request) -> bytes:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            raise GONE
        batch["polls"] += 1
        if batch["polls"] > self.polls and batch["status"] not in TERMINAL:
            self._finish(batch)
        if batch["end"] == "forgotten" and batch["status"] in TERMINAL:
            raise GONE
        return self._shown(batch)

    def _shown(self, batch: Json) -> bytes:
        return json.dumps(batch).encode()

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
        whole = lines if batch["status"] == "completed" else lines[: len(lines) // 2]
        right, wrong = list[str](), list[str]()
        for line in whole:
            self._answer(json.loads(line), right, wrong)
        left = [json.loads(line)["custom_id"] for line in lines[len(whole) :]]
        wrong += [
            json.dumps({"custom_id": id, "response": None, "error": {"code": "batch_expired"}})
            for id in left
        ]
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

    def _answer(self, row: Json, right: list[str], wrong: list[str]) -> None:
        call = self.receive(json.dumps(row["body"]).encode(), {})
        answer = self.behave(call)
        try:
            body = json.loads(answer.body)
        except ValueError:
            body = answer.body.decode()
        if answer.status == 200:
            self.billed[row["custom_id"]] += 1
            usage = body.get("usage", {}) if isinstance(body, dict) else {}
            self.tokens.update(
                {key: usage.get(key, 0) for key in ("prompt_tokens", "completion_tokens")}
            )
        response = {"status_code": answer.status, "body": body}
        line = json.dumps({"custom_id": row["custom_id"], "response": response, "error": None})
        (right if answer.status == 200 else wrong).append(line)

    async def _ledger(self, request: web.Request) -> web.Response:
        live = len(self.calls) - self.billed.total()
        told = {"billed": self.billed, "tokens": self.tokens, "batches": len(self.batches)}
        return web.json_response({**told, "other": live})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=json.loads, default={})
    parser.add_argument("--ends", type=json.loads, default=[])
    options = parser.parse_args()

    asyncio.run(serve(BatchServer(faults=options.faults, ends=options.ends, polls=1)))


if __name__ == "__main__":
    main()
