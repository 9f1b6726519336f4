"""What is measured on real ranks: when every rank did what in an epoch, by marks of its clock, and
how well the network does, which rank 0 evaluates with the running statistics of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from simshuffle.results.timeline import phase_rows
from simshuffle.train.batch_norm import batch_norm_layers
from simshuffle.train.distributed.group import Ranks
from simshuffle.train.emulate import Materials
from simshuffle.train.evaluate import Evaluation, Score
from simshuffle.train.network import ranked_network
from simshuffle.train.run import Run
from simshuffle.train.training import Statistics

Floats = NDArray[np.float64]
PHASES = ("io", "forward", "backward", "allreduce", "exchange", "update", "exchange")
"""What an iteration goes through, as the simulator's timeline names it
(`simshuffle.results.timeline.PHASES`)."""
_COLUMNS = {"forward": (1,), "backward": (2,), "update": (3, 5), "exchange": (4, 6)}
"""Which of them make up each time of the iterations table."""


@dataclass(frozen=True)
class Marks:
    """When one rank did what in an epoch: s of its own clock."""

    begin: float  # of the epoch
    measured: float  # importance was measured, if it was
    # (iterations, 8) when the first and each following of `PHASES` began, and when the last ended
    bounds: Floats
    end: float  # of the last exchange

    def flat(self) -> Floats:
        """All in one array, by which ranks tell one another."""
        return np.concatenate([[self.begin, self.measured, self.end], self.bounds.ravel()])


def timeline_rows(epoch: int, every: Floats) -> list[dict[str, NDArray[Any]]]:
    """Rows of the timeline, given the marks (M, n) of all ranks; without bytes."""
    ranks, bounds = len(every), _bounds(every).swapaxes(0, 1)
    measured = every[None, :, :2]
    last = np.stack([bounds[-1, :, -1], every[:, 2]], axis=-1)[None]
    parts = (
        (["importance"], measured, True),
        (list(PHASES), bounds, False),
        (["exchange"], last, True),
    )
    return [
        phase_rows(epoch, names, at, np.zeros((len(at), ranks, len(names))), final=final)
        for names, at, final in parts
    ]


def _bounds(every: Floats) -> Floats:
    """(M, iterations, 8), from marks as `Marks.flat` has them."""
    return every[:, 3:].reshape(len(every), -1, len(PHASES) + 1)


def iteration_seconds(every: Floats) -> list[dict[str, float]]:
    """The times of each iteration in s, means over the ranks; of the marks (M, n) of all."""
    took = np.diff(_bounds(every), axis=-1).mean(axis=0)  # (iterations, 7)
    # the wait for the last exchange belongs to the last iteration
    took[-1, -1] += (every[:, 2] - _bounds(every)[:, -1, -1]).mean()
    return [
        {f"{name}_s": float(row[list(parts)].sum()) for name, parts in _COLUMNS.items()}
        for row in took
    ]


def epoch_seconds(every: Floats) -> tuple[float, float]:
    """Of the measuring of importance, and of the epoch in all, s: means over the ranks."""
    return float((every[:, 1] - every[:, 0]).mean()), float((every[:, 2] - every[:, 0]).mean())


# ------------------------------------------------------------------------------------------- scores


class Scorer:
    """Evaluates the network of ``run``, on the same samples as its emulation."""

    def __init__(self, run: Run, materials: Materials, ranks: Ranks, device: torch.device) -> None:
        self.ranks = ranks
        train, world_size = materials.train, run.world_size
        self.network = ranked_network(
            materials.model,
            train,
            world_size,
            run.training,
            device,
            materials.loss,
        )
        self.evaluation = Evaluation.of(run.training, materials.test, train, world_size, run.rng)

    def scores(self, model: nn.Module) -> dict[Statistics, Score]:
        """The scores on rank 0, nothing on the others. Collective."""
        layers = batch_norm_layers(model)
        mine = [
            statistic.double().cpu().numpy().ravel()
            for layer in layers
            for statistic in _statistics(layer)
        ]
        found = self.ranks.gather(np.concatenate([np.zeros(0), *mine]))
        if self.ranks.rank != 0:
            return {}
        with torch.no_grad():
            for kept, weight in zip(
                self.network.model.parameters(), model.parameters(), strict=True
            ):
                kept.copy_(weight)
            table = torch.from_numpy(np.array([np.asarray(part, np.float64) for part in found]))
            for layer in batch_norm_layers(self.network.model):
                for statistic in _statistics(layer):
                    size = statistic.shape[-1]
                    statistic.copy_(table[:, :size] if statistic.ndim == 2 else table[0, :size])
                    table = table[:, size:]
        return self.evaluation.scores(self.network)


def _statistics(layer: nn.Module) -> list[torch.Tensor]:
    return [
        each for each in (layer.running_mean, layer.running_var) if isinstance(each, torch.Tensor)
    ]
