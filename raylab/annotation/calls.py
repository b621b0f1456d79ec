"""The archive as a journal of calls; see `raylab.llm.chat.Journal`."""

from datetime import UTC, datetime

from raylab.archive.records import CallRow
from raylab.archive.store import Archive
from raylab.llm.chat import ChatRequest, Reply


class ArchiveJournal:
    """A journal in an archive that this process has open."""

    def __init__(self, archive: Archive, run: str) -> None:
        """Looks up calls of any run in `archive` and stores new ones as those of `run`."""
        self._archive = archive
        self._run = run

    async def get(self, key: str, description_hash: str) -> Reply | None:
        """See `raylab.llm.chat.Journal`."""
        row = self._archive.call(key)
        return None if row is None else reply_of(row)

    async def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str
    ) -> None:
        """See `raylab.llm.chat.Journal`."""
        self._archive.add_calls([call_row(self._run, request, reply, description_hash, role)])


def reply_of(row: CallRow) -> Reply:
    """Returns the reply to an archived call."""
    return Reply(
        key=row.key,
        text=row.text,
        response_model=row.response_model,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cost=row.cost,
        seconds=row.seconds,
        attempts=row.attempts,
        cached=True,
    )


def call_row(
    run: str, request: ChatRequest, reply: Reply, description_hash: str, role: str
) -> CallRow:
    """Returns the archived form of a call of `run` that was answered just now."""
    return CallRow(
        key=reply.key,
        description_hash=description_hash,
        run=run,
        role=role,
        endpoint=request.base_url,
        model=request.model,
        response_model=reply.response_model,
        seed=request.seed,
        parameters=request.parameters,
        text=reply.text,
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cost=reply.cost,
        seconds=reply.seconds,
        attempts=reply.attempts,
        created=datetime.now(UTC),
    )
