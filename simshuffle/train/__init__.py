"""Real training: what the shuffling strategy does to accuracy. It needs the extra
simshuffle[train]: without torch and scikit-learn, importing it raises ImportError.
"""

from __future__ import annotations

from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

if find_spec("torch") is None or find_spec("sklearn") is None:
    raise ImportError(
        "training needs torch and scikit-learn: pip install 'simshuffle[train]'"
    )

from simshuffle.study.registry import merge_extensions
from simshuffle.train.emulate import EmulatedRun, check_run, emulate, train_run
from simshuffle.train.emulation import Diverged, Emulation
from simshuffle.train.layers import layers, read_layers
from simshuffle.train.order_recording import recorded_order
from simshuffle.train.own import train_study
from simshuffle.train.run import Run
from simshuffle.train.screening import screen
from simshuffle.train.screening_result import Screening
from simshuffle.train.training import Training

__all__ = [
    "Diverged",
    "EmulatedRun",
    "Emulation",
    "Run",
    "Screening",
    "Training",
    "check_run",
    "emulate",
    "layers",
    "read_layers",
    "recorded_order",
    "screen",
    "train_run",
    "train_study",
]


def __getattr__(name: str) -> Any:
    """Import a name that an extension adds to this module when it is first used, and
    keep it as an attribute of the module.

    Raises:
        AttributeError: no extension adds the name.
    """
    place = merge_extensions().functions.get(f"train.{name}")
    if place is None:
        raise AttributeError(f"module 'simshuffle.train' has no attribute '{name}'")
    globals()[name] = value = resolve_name(place)
    return value
