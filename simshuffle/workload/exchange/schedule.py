"""How samples are exchanged, as data: the messages and all that decides their cost; who is whose
partner, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.library import parse_kind, suggest_nearest
from simshuffle.spec.record import Count, Fraction, Seconds, Sourced
from simshuffle.workload.exchange.importance import RankImportance
from simshuffle.workload.exchange.partners import RULES, PartnerRule, PartnerRuleName, Pool
from simshuffle.workload.exchange.plan import RankPlaces

PartnerScope = Literal["all", "rack", "leaf", "host"]
PartnerLifetime = Literal["sample", "iteration", "epoch"]
SamplesPerMessage = Count | Literal["iteration"]
Barriers = Literal["message", "iteration", "none"]
Payload = Literal["decoded", "encoded"]

CODE = (
    "github.com/TruongThaoNguyen/kakurenbo (6cb9f88), ImageNet/utils/scheduler.py, PartialScheduler"
)
MEASURED = "simshuffle probe on one core of an AMD EPYC, Pillow 13, a JPEG of 500 x 375 pixels"
SOURCES = {
    "samples_per_message": CODE,
    "read": f"{MEASURED}: open, read and close a cached file of 104 kB, 19 us",
    "zero_buffer": f"{MEASURED}: 4 MiB, which is the authors' receive buffer of one sample, 86 us",
    "draw": f"{MEASURED}: numpy's RandomState.shuffle of a list, 15 ns a rank at 2048 ranks",
    "remove": f"{MEASURED}: unlink a file, 17 us",
}


AUTHORS, STREAMLINED, OWN = "authors", "streamlined", "own"
NAMES = (STREAMLINED, AUTHORS)
"""Of the schedules that a file may name."""


class MessageSchedule(Sourced):
    """How the samples of a plan are sent. Two schedules have names, and can be given by them, as in
    ``authors``, ``authors:overlap=false`` or ``{kind: authors, overlap: false}``:

    - ``streamlined``, the default, is that of `simshuffle.train.distributed.Scheduler`: files
      travel as they are, into buffers of their size, and ranks need not meet.
    - ``authors`` is that of the authors' code (PartialScheduler): decoded and pickled images, into
      buffers that are zeroed, and a barrier before every message.

    Attributes:
        samples_per_message: samples that travel together; 'iteration' for all of an iteration.
        barriers: 'message': all ranks meet before every message and after the receipt; 'iteration':
            before the first message of an iteration and after the receipt; 'none'.
        payload: 'decoded' sends the pickled raw image, 'encoded' the file's bytes (nothing is
            decoded or encoded then).
        overlap: True waits for the messages of an iteration after the next iteration's backward
            pass, False at once.
        read: s a sample of the sender's main thread, beside the device's time (open, system calls).
        decode: s for a sample of mean size; None takes the data set's.
        pickle: s for a sample of mean size; None takes what the payload's bytes need (see
            `simshuffle.job.scenario.host_work`).
        zero_buffer: s to zero the receive buffer of one sample.
        draw: s for each rank of a permutation, to draw it; charged for every one that the plan says
            is drawn (`ExchangePlan.draws`).
        write: s of the receiver's main thread for a sample of mean size, beside the device's time;
            None takes the data set's encode.
        remove: s a sample to remove what was sent, at the end of the epoch.
        source: where the numbers come from: one text, or one for each key.
    """

    samples_per_message: SamplesPerMessage = 1
    barriers: Barriers = "none"
    payload: Payload = "encoded"
    overlap: bool = True
    read: Seconds = 19e-6
    decode: Seconds | None = None
    pickle: Seconds | None = None
    zero_buffer: Seconds = 0.0
    draw: Seconds = 15e-9
    write: Seconds | None = None
    remove: Seconds = 17e-6
    source: str | dict[str, str] = Field(default_factory=lambda: dict(SOURCES))

    of_authors: ClassVar[Mapping[str, Any]] = {
        "barriers": "message",
        "payload": "decoded",
        "zero_buffer": "86 us",
    }
    """What the authors' schedule has other than the default."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        given = parse_kind(value) if isinstance(value, str) else value
        if not isinstance(given, dict) or "kind" not in given:
            return given
        name, others = given["kind"], {key: given[key] for key in given if key != "kind"}
        named: dict[Any, Mapping[str, Any]] = {STREAMLINED: {}, AUTHORS: cls.of_authors}
        if name not in named:
            rule = f"must be {' or '.join(named)}, or a mapping of its keys."
            raise ValueError(f"{rule} {suggest_nearest(str(name), list(named))}")
        if others.keys() >= _WRITTEN:
            raise ValueError(
                "has all keys already, so that a kind changes nothing: set schedule itself"
            )
        return {**named[name], **others}

    @property
    def name(self) -> str:
        """'streamlined' or 'authors', if it is that in all that decides its cost; else 'own'."""
        for name in (STREAMLINED, AUTHORS):
            other = type(self).model_validate(name)
            if all(getattr(self, key) == getattr(other, key) for key in _MESSAGE_KEYS):
                return name
        return OWN

    def messages(self, iteration: Ints) -> Ints:
        """Message number of each step, given the iteration (steps,) of each step."""
        if not len(iteration):
            return np.zeros(0, np.int64)
        # place of each step among those of its iteration
        within = np.arange(len(iteration)) - np.searchsorted(iteration, iteration)
        each = self.samples_per_message
        starts = within % (len(iteration) if each == "iteration" else each) == 0
        return np.asarray(np.cumsum(starts) - 1)


_MESSAGE_KEYS = tuple(key for key in MessageSchedule.model_fields if key != "source")
_WRITTEN = frozenset(
    key for key in _MESSAGE_KEYS if MessageSchedule.model_fields[key].default is not None
)
"""Keys of every schedule that is written out."""


class Pairing(Sourced):
    """Who is whose partner, and for how long.

    Attributes:
        partner_rule: name of one of `simshuffle.workload.exchange.partners.RULES`, by which
            partners are found. 'random': one random permutation of all ranks, drawn from a seed
            that all share; 'random_pairs': one random matching, so that whoever a rank sends to
            sends to it; 'importance_sorted': a matching of the rank of i-th lowest importance with
            that of i-th highest, equals in an order drawn anew. In a matching of an odd number of
            ranks one keeps its samples.
        partner_scope: among whom: 'all' ranks, or those of the same 'rack', 'leaf' switch or 'host'
            (see `RankPlaces`). Of a matching within odd groups those left over are paired with
            one another.
        partner_lifetime: how long partners serve before others are found: one 'sample', one
            'iteration' or the whole 'epoch'.
        partners_per_epoch: with a lifetime of an 'epoch': how many serve one after the other, for
            equal shares of its iterations.
        rank_importance: of a rank, for 'importance_sorted': the 'max', 'mean' or 'sum' over the
            samples of its shard. Where partners serve for less than an epoch, over those that it
            has not yet sent in this epoch.
        least_difference: for 'importance_sorted': pairs exchange nothing if their importances
            differ by less than this share of the higher one.
    """

    partner_rule: PartnerRuleName = "random"
    partner_scope: PartnerScope = "all"
    partner_lifetime: PartnerLifetime = "sample"
    partners_per_epoch: Count = 1
    rank_importance: RankImportance = "max"
    least_difference: Fraction = 0.0

    @model_validator(mode="after")
    def _what_is_set_is_used(self) -> Pairing:
        for name, rule in RULES.items():
            for key in rule.keys if name != self.partner_rule else ():
                if getattr(self, key) != Pairing.model_fields[key].default:
                    raise ValueError(f"{key} can be set only where partner_rule is '{name}'")
        if self.partners_per_epoch > 1 and self.partner_lifetime != "epoch":
            raise ValueError("partners_per_epoch can be set only where partner_lifetime is 'epoch'")
        return self

    @property
    def rule(self) -> PartnerRule:
        """The rule that ``partner_rule`` names."""
        return RULES[self.partner_rule]

    def gathered(self, shard_size: float) -> float:
        """Importances that each rank makes known to all others, so that partners can be found: none
        if they do not depend on it; one if partners stay for the epoch; else those of all
        ``shard_size`` samples, from which the others can tell what is left of them later."""
        if not self.rule.needs_importance:
            return 0.0
        once = self.partner_lifetime == "epoch" and self.partners_per_epoch == 1
        return 1.0 if once else shard_size

    def pairing_of(self, iteration: Ints) -> Ints:
        """Which partners serve in each step: (steps,) numbers from 0 on, not decreasing, given the
        iteration (steps,) of each step."""
        if self.partner_lifetime == "sample":
            return np.arange(len(iteration))
        if self.partner_lifetime == "epoch" and len(iteration):
            # iteration i of n belongs to share i k // n of k equal ones
            iteration = iteration * self.partners_per_epoch // (int(iteration[-1]) + 1)
        return np.unique(iteration, return_inverse=True)[1]

    def random_orders(self, pairing: Ints, world_size: int, rng: np.random.Generator) -> Ints:
        """A random order of all ranks for each pairing (see `pairing_of`): (pairings, M) int64. All
        rules take the same from ``rng``, which all ranks share."""
        count = int(pairing[-1]) + 1 if len(pairing) else 0
        return np.array([rng.permutation(world_size) for _ in range(count)], np.int64).reshape(
            count, world_size
        )

    def targets(
        self, order: Ints, importance: Floats | None = None, places: RankPlaces | None = None
    ) -> Ints:
        """Whom each rank sends to in each pairing: (pairings, M) int64, a permutation in each row,
        given the ``order`` (pairings, M) from `random_orders`, the ``importance`` (pairings, M) of
        each rank when the pairing begins, for rules that need it, and the places of the ranks, for
        a ``partner_scope`` of less than all. Raises a ValueError if what the partners depend on is
        not given."""
        if self.partner_scope == "all":
            group: Ints = np.zeros(order.shape[1], np.int64)
        elif places is None:
            rule = f"partners of the same {self.partner_scope} need the places of the ranks"
            raise ValueError(rule)
        else:
            group = getattr(places, self.partner_scope)
        return self.rule.partners(Pool(order, group, importance, self.least_difference))


class ExchangeSchedule(MessageSchedule, Pairing):
    """How samples are exchanged by strategies that find partners by a rule: `Pairing` says with
    whom, `MessageSchedule` how."""

    @model_validator(mode="after")
    def _partners_outlive_messages(self) -> ExchangeSchedule:
        if self.partner_lifetime == "sample" and self.samples_per_message != 1:
            raise ValueError(
                "partner_lifetime must be 'iteration' or 'epoch' when a message carries several"
                " samples"
            )
        return self


def spread_over_iterations(quota: int, per_iteration: float, iterations: int) -> Ints:
    """Iteration of every step: floor-with-carry of ``per_iteration`` samples an iteration until
    ``quota`` is used up. What the floor leaves over is sent after the last iteration, so that the
    quota is met. Returns (quota,) int64."""
    carried = np.minimum(
        np.floor(per_iteration * np.arange(1, iterations + 1) + 1e-9), quota
    ).astype(np.int64)
    carried[-1] = quota
    return np.asarray(np.repeat(np.arange(iterations), np.diff(carried, prepend=0)))


def epoch_quota(exchange_fraction: float, num_samples: int, world_size: int, epoch: int) -> int:
    """Samples that each rank exchanges in epoch ``epoch`` (from 1): Q N / M, made whole so that the
    sum over epochs never strays."""
    exact = exchange_fraction * num_samples / world_size
    smallest_shard = num_samples // world_size
    return min(round(exact * epoch) - round(exact * (epoch - 1)), smallest_shard)
