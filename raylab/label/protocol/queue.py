"""The cases of a run that wait for people, kept in memory and brought up to date by what is new.

A request costs as much as the archive got since the last one, however many cases wait. Any number
of processes may write to the archive.
"""

import time
from collections.abc import Mapping
from itertools import islice
from threading import Lock
from typing import Any

from raylab.label.archive.records import (
    AUDIT,
    DECISION,
    HUMAN,
    JUDGE,
    UNCONFIRMED,
    UNDO,
    person,
)
from raylab.label.archive.reviews import Act, RunReviews
from raylab.label.archive.tables import digest

CONFIRMED_SECONDS, MAX_UNCONFIRMED = 2.0, 5000
"""Time between two looks for decisions that the evaluator has judged, which change in place, and
the most that are looked at: the first are judged first."""


class Queue:
    """The waiting cases of a run and their judgements; any thread may ask."""

    def __init__(self, archived: RunReviews) -> None:
        """Reads nothing before it is asked."""
        self._archived, self._turn = archived, Lock()
        self._seen, self._looked = 0, 0.0
        self._places: dict[str, int] = {}
        self._latest: dict[tuple[str, str], int] = {}
        # With the key by which the cases of a kind are ordered.
        self._waiting: dict[str, dict[int, Any]] = {DECISION: {}, AUDIT: {}}
        self._judges: dict[str, dict[int, Mapping[str, str]]] = {DECISION: {}, AUDIT: {}}
        self._unconfirmed: dict[int, None] = {}

    def look(self, kind: str) -> tuple[list[int], dict[int, Mapping[str, str]]]:
        """Returns what waits, and who has judged each case of the kind, by its sequence.

        Names are by person; a case that nobody has judged may have none.

        Args:
            kind: `DECISION` for open cases, in the order of the run; `AUDIT` for drawn ones, in
                pseudo-random order, so that those coded first are a random sample too.
        """
        with self._turn:
            self._refresh()
            waiting = self._waiting[kind]
            return sorted(waiting, key=waiting.__getitem__), dict(self._judges[kind])

    def _refresh(self) -> None:
        now, judged = time.monotonic(), ()
        if now - self._looked > CONFIRMED_SECONDS:
            self._looked, judged = now, tuple(islice(self._unconfirmed, MAX_UNCONFIRMED))
        new = self._archived.changes(self._seen, judged)
        self._places |= {case: place for place, case in new.open.items()} | new.drawn
        self._waiting[DECISION] |= {place: place for place in new.open}
        self._seen = max([self._seen, *new.open, *(act.sequence for act in new.acts)])
        for act in new.acts:
            self._apply(act)

    def _apply(self, act: Act) -> None:
        place, at = self._places.get(act.case), (act.kind, act.case)
        self._unconfirmed.pop(act.sequence, None)
        if place is None or act.sequence < self._latest.get(at, 0):
            return
        self._latest[at] = act.sequence
        if act.status == UNCONFIRMED:
            self._unconfirmed[act.sequence] = None
        waiting = self._waiting[act.kind]
        if act.status == HUMAN:
            waiting[place] = digest(act.case) if act.kind == AUDIT else place
        else:
            waiting.pop(place, None)
        # Others may hold the mapping that is there.
        people = dict(self._judges[act.kind].get(place, {}))
        if act.action == JUDGE:
            people[person(act.reviewer)] = act.reviewer
        elif act.action == UNDO:
            people.pop(person(act.reviewer), None)
        self._judges[act.kind][place] = people
