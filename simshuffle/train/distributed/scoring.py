"""Evaluation of a run on real ranks: rank 0 evaluates with the running statistics of all, as the
emulation does."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from simshuffle.train.batch_norm import batch_norm_layers
from simshuffle.train.distributed.group import Ranks
from simshuffle.train.emulate import Materials
from simshuffle.train.evaluate import Evaluation, Score
from simshuffle.train.iterations import local_batches
from simshuffle.train.network import ranked_network
from simshuffle.train.run import Run
from simshuffle.train.training import Statistics


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
            local_batches(len(train), world_size, run.training),
            materials.loss,
        )
        self.evaluation = Evaluation(
            materials.test,
            train,
            statistics=run.training.statistics,
            world_size=world_size,
            own_ranks=run.training.own_ranks,
            rng=run.rng("evaluate"),
            order_rng=run.rng("recalibrate"),
            temperature=run.training.temperature,
        )

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
