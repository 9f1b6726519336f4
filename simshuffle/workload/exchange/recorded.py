"""Recorded: the exchange of a training that was recorded, replayed one to one or scaled
up.
"""

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
from simshuffle.workload.exchange.sending import Paired, draw_at_first_steps


class Recorded(Paired):
    """The recorded exchange of a training, epoch by epoch, in place of a strategy that
    decides it.

    Scaling up: each recorded rank stands for ``ranks_each`` ranks, so that there are as
    many copies of the training side by side, their ranks dealt out over the machine at
    random; each recorded sample stands for ``samples_each`` samples, which go the same
    way one after the other. The order of steps is kept; their pace is Q b samples an
    iteration, as in every strategy, which is that of the recording if batch size and
    iterations are. Samples beyond the multiple stay where they are.

    The schedule is that of the recorded training: how often partners were drawn, and
    what was made known to find them, is charged as it says.

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
        """True if ``measures_importance``; the recording has decided which samples are
        sent.
        """
        return self.measures_importance

    def read_recorded_plans(self) -> RecordedPlans:
        """Read the plans of the file at ``path``.

        A file that was read before, and not modified since, comes from a cache: its
        arrays must not be changed.

        Raises:
            InputError: if the file cannot be read, or is another one than ``sha256``
                says.
        """
        path = Path(self.path)
        try:
            modified_ns = path.stat().st_mtime_ns
        except (OSError, ValueError):
            remedy = "Name plans/RUN.npz of a study."
            refuse("path", "no such file", repr(self.path), remedy, "recorded exchange")
        recording, digest = _read_with_digest(path, modified_ns)
        if self.sha256 not in (None, digest):
            rule = "the file is no longer the one that sha256 names"
            remedy = "Leave it out to use the new one."
            refuse("sha256", rule, str(self.sha256), remedy, self.path)
        return recording

    def check(self, num_samples: int, world_size: int, epochs: int) -> list[Problem]:
        """Return the problems of replaying the recording with these samples, ranks and
        epochs.

        Ranks must be the recorded ones times ``ranks_each``; samples (looked at only
        if ranks fit) at least as many as the copies need; epochs at most the recorded
        ones. An empty list if all fit.

        Raises:
            InputError: if the file cannot be read, or ``sha256`` is another file's.
        """
        recording = self.read_recorded_plans()
        recorded_ranks = recording.world_size
        recorded_samples = len(recording.owner)
        problems = []
        if recorded_ranks * self.ranks_each != world_size:
            rule = f"must be {self.ranks_each} times the {recorded_ranks} ranks that were recorded"
            remedy = "Set it, or ranks_each of the exchange."
            problems.append(Problem("world_size", rule, str(world_size), remedy))
        elif recorded_samples * self.ranks_each * self.samples_each > num_samples:
            rule = (
                f"must be at least {self.ranks_each * self.samples_each} times the"
                f" {recorded_samples} samples that were recorded"
            )
            remedy = "Use a smaller samples_each."
            problems.append(
                Problem("workload.dataset.num_samples", rule, str(num_samples), remedy)
            )
        if epochs > len(recording.plans):
            rule = f"must be at most the {len(recording.plans)} that were recorded"
            problems.append(Problem("epochs", rule, str(epochs), "Simulate fewer."))
        return problems

    def first_owner(
        self, num_samples: int, world_size: int, rng: np.random.Generator
    ) -> Ints:
        """Return the rank of each sample before the first epoch: (N,) int32.

        Samples that no recorded sample stands for are dealt to the ranks in turn.
        Nothing is drawn from ``rng``.

        Raises:
            InputError: if the file cannot be read, or ``sha256`` is another file's.
        """
        recording = self.read_recorded_plans()
        owner = np.empty(num_samples, np.int32)
        # (copies, N of the recording) the rank of each recorded sample in each copy
        ranks = self._place_ranks(recording.world_size)[:, recording.owner]
        num_copied = ranks.size * self.samples_each
        owner[:num_copied] = np.repeat(ranks.ravel(), self.samples_each)
        owner[num_copied:] = np.arange(num_samples - num_copied) % world_size
        return owner

    def plan(self, context: EpochContext) -> ExchangePlan:
        """Return the recorded exchange of the epoch, scaled up.

        Steps are spread over the iterations of ``context`` anew; nothing is drawn from
        its generator. An epoch that was recorded without steps gives an empty plan.

        Raises:
            InputError: if so many epochs were not recorded, or the file cannot be read.
        """
        recording = self.read_recorded_plans()
        epoch = context.epoch
        if epoch > len(recording.plans):
            rule = f"must be at most the {len(recording.plans)} that were recorded"
            refuse("epochs", rule, str(epoch), "Simulate fewer.", self.path)
        plan = recording.plans[epoch - 1]
        if not len(plan.iteration):
            return empty_plan(len(context.shards.sizes))
        sample, target = self._scale_steps(plan, len(recording.owner))
        iteration = self.iteration_of_steps(context, len(sample))
        first_steps = np.unique(self.schedule.pairing_of(iteration), return_index=True)[
            1
        ]
        return ExchangePlan(
            sample,
            target,
            iteration,
            self._number_messages(iteration, target),
            draw_at_first_steps(first_steps, len(iteration)),
        )

    def _scale_steps(
        self, plan: ExchangePlan, recorded_samples: int
    ) -> tuple[Ints, Ints]:
        """Return the sample and the target of each rank in all steps, (steps, M) each.

        There are ``samples_each`` steps for each recorded step.

        Args:
            plan: of the recorded epoch.
            recorded_samples: N of the recording.
        """
        samples_each = self.samples_each
        ranks_of_copies = self._place_ranks(plan.world_size)
        num_steps = len(plan.sample) * samples_each
        sample = np.empty((num_steps, ranks_of_copies.size), np.int64)
        target = np.empty((num_steps, ranks_of_copies.size), np.int64)
        for copy, ranks in enumerate(ranks_of_copies):
            # sample s of a copy stands for samples s each, s each + 1, ..., one a step
            first_sample = (
                plan.sample.astype(np.int64) + copy * recorded_samples
            ) * samples_each
            # (recorded steps, samples_each, recorded ranks)
            copied_samples = (
                first_sample[:, None, :] + np.arange(samples_each)[None, :, None]
            )
            sample[:, ranks] = copied_samples.reshape(num_steps, -1)
            target[:, ranks] = np.repeat(ranks[plan.target], samples_each, axis=0)
        return sample, target

    def _place_ranks(self, recorded_ranks: int) -> Ints:
        """Draw which rank each recorded rank is in each copy: (copies, recorded ranks).

        The draw is equal in every run; a single copy keeps its ranks.
        """
        if self.ranks_each == 1:
            return np.arange(recorded_ranks)[None, :]
        world_size = recorded_ranks * self.ranks_each
        permutation = stream(0, "recorded ranks").permutation(world_size)
        return permutation.reshape(self.ranks_each, recorded_ranks)

    def _number_messages(self, iteration: Ints, target: Ints) -> Ints:
        """Number the messages as the schedule does, with a new one wherever the
        partners change.

        Args:
            iteration: (steps,) of each step, at least one; not decreasing.
            target: (steps, M) of each rank.

        Returns:
            (steps,) the message of each step, from 0.
        """
        starts_message = np.diff(self.schedule.messages(iteration), prepend=-1) != 0
        starts_message[1:] |= (target[1:] != target[:-1]).any(axis=1)
        return np.asarray(np.cumsum(starts_message) - 1)


@lru_cache(maxsize=2)
def _read_with_digest(path: Path, modified_ns: int) -> tuple[RecordedPlans, str]:
    """Read the plans of a file and its SHA-256, in hexadecimal.

    The last two files are kept: a file is read anew only when it was modified.

    Args:
        path: of the file.
        modified_ns: when the file was modified; used as a key of the cache alone.

    Raises:
        InputError: if the file cannot be read.
    """
    plans = read_plans(path)
    with path.open("rb") as file:
        return plans, hashlib.file_digest(file, "sha256").hexdigest()
