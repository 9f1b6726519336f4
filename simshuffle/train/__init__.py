"""Real training: what the shuffling strategy does to accuracy. The only room that imports torch
(extra: simshuffle[train])."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("sklearn") is None:
    raise ImportError("training needs torch and scikit-learn: pip install 'simshuffle[train]'")

from simshuffle.extensions.doctor.recording import Recording, record
from simshuffle.train.emulate import EmulatedRun, check_run, emulate, train_run
from simshuffle.train.emulation import Diverged, Emulation
from simshuffle.train.layers import layers, read_layers
from simshuffle.train.order_recording import recorded_order
from simshuffle.train.own import train_study
from simshuffle.train.run import Run
from simshuffle.train.screening import Screening, screen
from simshuffle.train.training import Training

__all__ = [
    "Diverged",
    "EmulatedRun",
    "Emulation",
    "Recording",
    "Run",
    "Screening",
    "Training",
    "check_run",
    "emulate",
    "layers",
    "read_layers",
    "record",
    "recorded_order",
    "screen",
    "train_run",
    "train_study",
]
