"""Time to accuracy: what a training reached after each epoch, joined with the simulated time of its
epochs. No torch.

from simshuffle import load_scenario
from simshuffle.tta import time_to_accuracy

found = time_to_accuracy("results/default-0123456789ab", load_scenario("abci-imagenet1k"),
scale="samples") found.save("tta")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simshuffle.studies.time_to_accuracy.join import time_to_accuracy
    from simshuffle.studies.time_to_accuracy.study import TimeToAccuracy

__all__ = ["TimeToAccuracy", "time_to_accuracy"]

_HOMES = {"TimeToAccuracy": "study", "time_to_accuracy": "join"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that a figure is redrawn without the
    simulator."""
    if name in _HOMES:
        return getattr(
            importlib.import_module(f"simshuffle.studies.time_to_accuracy.{_HOMES[name]}"), name
        )
    raise AttributeError(f"module 'simshuffle.studies.time_to_accuracy' has no attribute '{name}'")
