"""Checkpoints of a training: when its state is saved, how much each rank writes, and
where to.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from simshuffle.errors import InputError, Problem
from simshuffle.spec.record import (
    Bandwidth,
    Count,
    Positive,
    PositiveNBytes,
    PositiveSeconds,
    Sourced,
)

Place = Literal["memory", "ssd", "pfs", "object_store"]


class Checkpoint(Sourced):
    """Checkpoints of a training. Exactly one of 'every' and 'period' says when its
    state is saved.

    Attributes:
        every: iterations from one save to the next, counted over all epochs.
        period: of training between the end of a save and the next one, which begins
            after the iteration in which it is over.
        mode: whether the training loop waits until all is written ('synchronous'), or
            until its state is copied to the memory of the host ('asynchronous').
        layout: who writes what: the first rank all ('whole'), every rank what it holds
            ('sharded'; under data parallelism that is all), or every byte once, spread
            evenly over the ranks ('deduplicated').
        to: where to.
        drain: where a save in memory or on an SSD is copied to, in the background.
        state: bytes of all parameters, and of what the optimiser keeps; if left out
            they follow from the model, 'bytes_per_parameter', and
            'workload.parallelism'.
        bytes_per_parameter: of the state; if left out a weight has the precision of its
            gradient, and the optimiser keeps 4 B for each of its values, and for an
            FP32 copy of weights that have less than 4 B.
        serialise: what one core turns into a file, or back.
        watchdog: how long a rank waits for others before the job is killed.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "serialise": "default: torch.save of PyTorch 2.13, 1 GB of FP32 to memory by one core of an"
        " AMD EPYC: 0.98 GB/s",
        "watchdog": "default: PyTorch's timeout of collectives of NCCL, 10 min"
        " (torch.distributed.init_process_group)",
    }

    every: Count | None = None
    period: PositiveSeconds | None = None
    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    layout: Literal["whole", "sharded", "deduplicated"] = "whole"
    to: Place = "pfs"
    drain: Literal["none", "pfs", "object_store"] = "none"
    state: PositiveNBytes | None = None
    bytes_per_parameter: Positive | None = None
    serialise: Bandwidth = 1e9
    watchdog: PositiveSeconds = 600.0

    @model_validator(mode="after")
    def _check_combination(self) -> Checkpoint:
        """Refuse both or neither of ``every`` and ``period``, a drain from servers, and
        ``bytes_per_parameter`` beside ``state``.
        """
        if (self.every is None) == (self.period is None):
            number_given = "neither" if self.every is None else "both"
            remedy = "Write one of them, as every: 500, or period: 600 s."
            raise InputError(
                Problem(
                    "every", "or period says when, and not both", number_given, remedy
                )
            )
        if self.drain != "none" and self.to not in {"memory", "ssd"}:
            rule = "must be none where saves go to the file system or the object store at once"
            raise InputError(
                Problem("drain", rule, self.drain, "Set to: ssd, or leave it out.")
            )
        if self.state is not None and self.bytes_per_parameter is not None:
            rule = "must not be given beside bytes_per_parameter"
            remedy = "Leave one out."
            raise InputError(Problem("state", rule, "both", remedy))
        return self

    @property
    def kept_in(self) -> Place:
        """The last place of a save: ``drain``, or ``to`` if nothing is drained."""
        return self.to if self.drain == "none" else self.drain

    @property
    def writes_to_pfs(self) -> bool:
        """True if saves go to the parallel file system, at once or drained."""
        return "pfs" in {self.to, self.drain}

    @property
    def needs_store(self) -> bool:
        """True if saves go to the object store, at once or drained."""
        return "object_store" in {self.to, self.drain}

    def describe(self) -> str:
        """Return the checkpoint in words: 'synchronous, deduplicated, to ssd, drained
        to pfs'.
        """
        drained = "" if self.drain == "none" else f", drained to {self.drain}"
        return f"{self.mode}, {self.layout}, to {self.to}{drained}"
