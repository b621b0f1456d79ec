"""Attempts at calls that are in flight, or whose cost is not that of a kept call."""

from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, update

from raylab.archive.tables import ATTEMPTS


class AttemptState(StrEnum):
    """The state of an attempt that the archive counts."""

    SENT = "sent"
    """In flight: no equal call may be sent."""
    UNKNOWN = "unknown"
    """Perhaps paid: nobody knows what the server counted, so the reservation is kept."""
    PAID = "paid"
    """Paid and answered, after an equal call had been answered."""


def void_claims(connection: Connection, *of_dead: ColumnElement[bool]) -> None:
    """Lets equal calls be sent again; what the attempts may have cost stays counted."""
    in_flight = ATTEMPTS.c.state == AttemptState.SENT
    statement = update(ATTEMPTS).where(in_flight, *of_dead).values(state=AttemptState.UNKNOWN)
    connection.execute(statement)
