"""The calls of a run in one process, without the actors that an annotation has."""

from collections.abc import Sequence

from raylab.annotation.calls import ArchiveWriter, CallJournal
from raylab.archive.ledger import CallOperation, CallResults
from raylab.archive.records import CallRow, CaseRow, DecisionRow
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.llm.client import Client
from raylab.llm.connection import Timing
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import RateLimiter


class LocalArchive:
    """The client of a writer in the same process; see `ArchiveClient`."""

    def __init__(self, writer: ArchiveWriter, claimant: str = "") -> None:
        """Writes with `writer`; `claimant` names this client among those of the run."""
        self._writer, self._claimant = writer, claimant

    async def write_calls(self, operations: Sequence[CallOperation]) -> CallResults:
        """See `ArchiveClient`."""
        return self._writer.write_calls(operations, self._claimant)

    async def void_claims(self) -> None:
        """See `ArchiveClient`."""
        self._writer.void_claims(self._claimant)

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """See `ArchiveClient`."""
        return self._writer.calls_of(description_hashes)

    async def add_cases(self, rows: Sequence[CaseRow]) -> None:
        """See `ArchiveClient`."""
        self._writer.add_cases(rows)

    async def confirm(self, sequence: int, row: DecisionRow) -> None:
        """See `ArchiveClient`."""
        self._writer.confirm(sequence, row)


class LocalRateLimiter:
    """The client of a limiter in the same process."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def reserve(self, endpoint: str, tokens: int) -> float:
        return self._limiter.reserve(endpoint, tokens)

    async def settle(self, endpoint: str, tokens: int, calls: int = 0) -> None:
        self._limiter.settle(endpoint, tokens, calls)

    async def penalise(self, endpoint: str, seconds: float) -> None:
        self._limiter.penalise(endpoint, seconds)


def client_of_run(
    llm: LlmConfig,
    archive: Archive,
    run: str,
    owner: str,
    embedded: EndpointAccess | None = None,
    timing: Timing | None = None,
    limiter: RateLimiter | None = None,
) -> Client:
    """Returns a client of this process alone, which shares its limits with nobody."""
    if limiter is None:
        limiter = RateLimiter(llm.limits, (timing or Timing()).clock)
    writer = LocalArchive(ArchiveWriter(archive, run, owner, llm.budget))
    journal = CallJournal(writer, run, llm.budget)
    return Client(llm, journal, LocalRateLimiter(limiter), embedded, timing=timing)
