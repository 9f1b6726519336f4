"""Attempt: a cell is done, and its outcome is kept; or it is said why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from simshuffle.errors import SimshuffleError
from simshuffle.study.cell import Cell, Tell
from simshuffle.study.store import Store


@dataclass(frozen=True)
class Lost:
    """A cell without an outcome."""

    why: str  # a sentence for people
    error: SimshuffleError | None = None  # what the cell raised; None where its process died


def attempt(cell: Cell, digest: str, store: Store, tell: Tell) -> Lost | None:
    """Do a cell and keep its outcome; None, or why there is none."""
    try:
        store.put(digest, cell.run(tell))
    except SimshuffleError as error:
        return Lost(str(error), error)
    except OSError:
        raise  # the disk is full, or the store cannot be written: no other cell would fare better
    except Exception as error:  # noqa: BLE001 - whatever a cell raises, the others go on
        return Lost(f"{type(error).__name__}: {error}")
    return None
