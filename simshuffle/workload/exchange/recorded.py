"""Recorded: the exchange of a training that was recorded, replayed one to one or scaled up."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import Problem, refuse
from simshuffle.spec.arrays import Ints
from simshuffle.spec.record import Count
from simshuffle.spec.rng import stream
from simshuffle.workload.exchange.base import EpochContext
from simshuffle.workload.exchange.plan import ExchangePlan, empty_plan
from simshuffle.workload.exchange.recording import RecordedPlans, read_plans
from simshuffle.workload.exchange.sending import Paired, one_each


class Recorded(Paired):
    """Who sent which sample to whom in a training, epoch by epoch, in place of a strategy that
    decides it.

    Scaling up: each recorded rank stands for ``ranks_each`` ranks, so that there are as many copies
    of the training side by side, their ranks dealt out over the machine at random; each recorded
    sample stands for ``samples_each`` samples, which go the same way one after the other. The order
    of steps is kept; their pace is Q b samples an iteration, as in every strategy, which is that of
    the recording if batch size and iterations are. Samples beyond the multiple stay where they are.

    The schedule is that of the recorded training: how often partners were drawn, and what was made
    known to find them, is charged as it says.

    Attributes:
        path: file of the plans, as a training study writes it (``plans/RUN.npz``).
        sha256: of that file, in hexadecimal; if given, another file is refused.
        measures_importance: every epoch begins with an inference pass.
        samples_each, ranks_each: see above.
    """

    kind: Literal["recorded"]
    whole_because: ClassVar[str] = "the exchange is recorded sample by sample"
    path: str
    sha256: str | None = None
    measures_importance: bool = False
    samples_each: Count = 1
    ranks_each: Count = 1

    @property
    def inference_pass(self) -> bool:
        """``measures_importance``; what is sent has been decided."""
        return self.measures_importance

    def recorded(self) -> RecordedPlans:
        """What the file holds. Raises an InputError if it cannot be read, or is another one than
        ``sha256`` says."""
        path = Path(self.path)
        try:
            stamp = path.stat().st_mtime_ns
        except (OSError, ValueError):
            remedy = "Name plans/RUN.npz of a study."
            refuse("path", "no such file", repr(self.path), remedy, "recorded exchange")
        found, digest = _read(path, stamp)
        if self.sha256 not in (None, digest):
            rule = "the file is no longer the one that sha256 names"
            remedy = "Leave it out to use the new one."
            refuse("sha256", rule, str(self.sha256), remedy, self.path)
        return found

    def check(self, num_samples: int, world_size: int, epochs: int) -> list[Problem]:
        """What keeps the recording from being replayed by ``world_size`` ranks on ``num_samples``
        samples. Raises an InputError if the file cannot be read."""
        found = self.recorded()
        ranks, held = _ranks(found), len(found.owner)
        problems = []
        if ranks * self.ranks_each != world_size:
            rule = f"must be {self.ranks_each} times the {ranks} ranks that were recorded"
            remedy = "Set it, or ranks_each of the exchange."
            problems.append(Problem("world_size", rule, str(world_size), remedy))
        elif held * self.ranks_each * self.samples_each > num_samples:
            rule = (
                f"must be at least {self.ranks_each * self.samples_each} times the {held} samples"
                " that were recorded"
            )
            remedy = "Use a smaller samples_each."
            problems.append(Problem("workload.dataset.num_samples", rule, str(num_samples), remedy))
        if epochs > len(found.plans):
            rule = f"must be at most the {len(found.plans)} that were recorded"
            problems.append(Problem("epochs", rule, str(epochs), "Simulate fewer."))
        return problems

    def first_owner(self, num_samples: int, world_size: int, rng: np.random.Generator) -> Ints:
        """The rank of each sample before the first epoch: (N,) int32."""
        found = self.recorded()
        owner = np.empty(num_samples, np.int32)
        ranks = self._placed(_ranks(found))[:, found.owner]  # (copies, N of the recording)
        taken = ranks.size * self.samples_each
        owner[:taken] = np.repeat(ranks.ravel(), self.samples_each)
        owner[taken:] = np.arange(num_samples - taken) % world_size
        return owner

    def plan(self, context: EpochContext) -> ExchangePlan:
        """The recorded exchange of that epoch, scaled. Raises an InputError if so many epochs were
        not recorded."""
        found, epoch = self.recorded(), context.epoch
        if epoch > len(found.plans):
            rule = f"must be at most the {len(found.plans)} that were recorded"
            refuse("epochs", rule, str(epoch), "Simulate fewer.", self.path)
        plan = found.plans[epoch - 1]
        if not len(plan.iteration):
            return empty_plan(len(context.shards.sizes))
        sample, target = self._scaled(plan, len(found.owner))
        iteration = self.iteration_of_steps(context, len(sample))
        begins = np.unique(self.schedule.pairing_of(iteration), return_index=True)[1]
        return ExchangePlan(
            sample,
            target,
            iteration,
            self._messages(iteration, target),
            one_each(begins, len(iteration)),
        )

    def _scaled(self, plan: ExchangePlan, recorded: int) -> tuple[Ints, Ints]:
        """Samples and targets of all steps, (steps, M) each."""
        each, ranks = self.samples_each, self._placed(plan.world_size)
        steps = len(plan.sample)
        sample = np.empty((steps * each, ranks.size), np.int64)
        target = np.empty((steps * each, ranks.size), np.int64)
        for copy, at in enumerate(ranks):
            # sample s of a copy stands for samples s each, s each + 1, ..., one a step
            of_copy = (plan.sample.astype(np.int64) + copy * recorded) * each
            every = of_copy[:, None, :] + np.arange(each)[None, :, None]
            sample[:, at] = every.reshape(steps * each, -1)
            target[:, at] = np.repeat(at[plan.target], each, axis=0)
        return sample, target

    def _placed(self, ranks: int) -> Ints:
        """(copies, recorded ranks): the rank that each stands for."""
        if self.ranks_each == 1:
            return np.arange(ranks)[None, :]
        drawn = stream(0, "recorded ranks").permutation(ranks * self.ranks_each)
        return drawn.reshape(self.ranks_each, ranks)

    def _messages(self, iteration: Ints, target: Ints) -> Ints:
        """Messages as the schedule has them, and a new one where the partners change."""
        changes = np.diff(self.schedule.messages(iteration), prepend=-1) != 0
        changes[1:] |= (target[1:] != target[:-1]).any(axis=1)
        return np.asarray(np.cumsum(changes) - 1)


def _ranks(found: RecordedPlans) -> int:
    return found.plans[0].world_size if found.plans else int(found.owner.max(initial=0)) + 1


@lru_cache(maxsize=2)
def _read(path: Path, stamp: int) -> tuple[RecordedPlans, str]:
    """Plans and SHA-256 of the file, read again when it was changed."""
    plans = read_plans(path)
    with path.open("rb") as file:
        return plans, hashlib.file_digest(file, "sha256").hexdigest()
