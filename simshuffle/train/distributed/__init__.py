"""Partial local shuffle and all other strategies for real: ranks of torch.distributed
exchange the samples of their local storage.
"""

from __future__ import annotations

from simshuffle.train.distributed.dataset import ShardDataset
from simshuffle.train.distributed.group import ExchangeError, leave
from simshuffle.train.distributed.images import ImageFolder
from simshuffle.train.distributed.network import data_parallel
from simshuffle.train.distributed.scheduler import Scheduler
from simshuffle.train.distributed.study import train_study
from simshuffle.train.distributed.training import train_distributed

__all__ = [
    "ExchangeError",
    "ImageFolder",
    "Scheduler",
    "ShardDataset",
    "data_parallel",
    "leave",
    "train_distributed",
    "train_study",
]
