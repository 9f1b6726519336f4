"""A measured truth that anyone can repeat: a small network of Linux network namespaces, measured
and simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simshuffle.studies.testbed.predict import predicted

__all__ = ["predicted"]


def __getattr__(name: str) -> Any:
    """Import the function when it is first used, so that verbs are listed without what
    computes."""
    if name == "predicted":
        from simshuffle.studies.testbed.predict import predicted  # noqa: PLC0415 - see above

        return predicted
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
