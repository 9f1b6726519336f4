"""The exchange schedule as data: messages and what decides their cost; partners and how
long they serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.library import parse_kind, suggest_nearest
from simshuffle.spec.record import Count, Fraction, Seconds, Sourced
from simshuffle.workload.exchange.importance import RankImportance
from simshuffle.workload.exchange.partners import (
    RULES,
    PartnerRule,
    PartnerRuleName,
    Pool,
)
from simshuffle.workload.exchange.plan import RankPlaces

PartnerScope = Literal["all", "rack", "leaf", "host"]
PartnerLifetime = Literal["sample", "iteration", "epoch"]
SamplesPerMessage = Count | Literal["iteration"]
Barriers = Literal["message", "iteration", "none"]
Payload = Literal["decoded", "encoded"]

SCHEDULER_CODE = (
    "github.com/TruongThaoNguyen/kakurenbo (6cb9f88),"
    " ImageNet/utils/scheduler.py, PartialScheduler"
)
MEASUREMENT = (
    "simshuffle probe on one core of an AMD EPYC, Pillow 13, a JPEG of 500 x 375 pixels"
)
SOURCES = {
    "samples_per_message": SCHEDULER_CODE,
    "read": f"{MEASUREMENT}: open, read and close a cached file of 104 kB, 19 us",
    "zero_buffer": (
        f"{MEASUREMENT}: 4 MiB, which is the authors' receive buffer of one sample, 86 us"
    ),
    "draw": f"{MEASUREMENT}: numpy's RandomState.shuffle of a list, 15 ns a rank at 2048 ranks",
    "remove": f"{MEASUREMENT}: unlink a file, 17 us",
}


AUTHORS = "authors"
STREAMLINED = "streamlined"
OWN_SCHEDULE = "own"
SCHEDULE_NAMES = (STREAMLINED, AUTHORS)
"""The names by which a file may give a whole schedule."""


class MessageSchedule(Sourced):
    """The way in which the samples of a plan are sent. Two schedules have names, which
    a file may give, as in ``authors``, ``authors:overlap=false`` or ``{kind: authors,
    overlap: false}``:

    - ``streamlined``, the default, is that of `simshuffle.train.distributed.Scheduler`: files
      travel as they are, into buffers of their size, and ranks need not meet.
    - ``authors`` is that of the authors' code (PartialScheduler): decoded and pickled images, into
      buffers that are zeroed, and a barrier before every message.

    Attributes:
        samples_per_message: samples that travel together; 'iteration' for all of an
            iteration.
        barriers: 'message': all ranks meet before every message and after the receipt;
            'iteration': before the first message of an iteration and after the receipt;
            'none'.
        payload: 'decoded' sends the pickled raw image, 'encoded' the file's bytes
            (nothing is decoded or encoded then).
        overlap: True waits for the messages of an iteration after the next iteration's
            backward pass, False at once.
        read: s a sample of the sender's main thread, beside the device's time (open,
            system calls).
        decode: s for a sample of mean size; None takes the data set's.
        pickle: s for a sample of mean size; None takes what the payload's bytes need
            (see `simshuffle.job.scenario.host_work`).
        zero_buffer: s to zero the receive buffer of one sample.
        draw: s for each rank of a permutation, to draw it; charged for every one that
            the plan says is drawn (`ExchangePlan.draws`).
        write: s of the receiver's main thread for a sample of mean size, beside the
            device's time; None takes the data set's encode.
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

    authors_settings: ClassVar[Mapping[str, Any]] = {
        "barriers": "message",
        "payload": "decoded",
        "zero_buffer": "86 us",
    }
    """The keys in which the authors' schedule differs from the default, and their
    values.
    """

    @model_validator(mode="before")
    @classmethod
    def _expand_kind(cls, value: object) -> object:
        """Replace the name of a schedule, or its ``kind``, by the keys in which it
        differs.

        Keys that stand beside ``kind`` win. A value without a kind is returned as it
        is.

        Raises:
            ValueError: for an unknown kind, or a kind beside all keys, which has no
                effect.
        """
        settings = parse_kind(value) if isinstance(value, str) else value
        if not isinstance(settings, dict) or "kind" not in settings:
            return settings
        kind = settings["kind"]
        overrides = {key: settings[key] for key in settings if key != "kind"}
        settings_by_kind: dict[Any, Mapping[str, Any]] = {
            STREAMLINED: {},
            AUTHORS: cls.authors_settings,
        }
        if kind not in settings_by_kind:
            rule = f"must be {' or '.join(settings_by_kind)}, or a mapping of its keys."
            raise ValueError(
                f"{rule} {suggest_nearest(str(kind), list(settings_by_kind))}"
            )
        if overrides.keys() >= _KEYS_WITH_DEFAULT:
            raise ValueError(
                "has all keys already, so that a kind changes nothing: set schedule itself"
            )
        return {**settings_by_kind[kind], **overrides}

    @property
    def name(self) -> str:
        """'streamlined' or 'authors', if the schedule equals it in all that decides its
        cost; else 'own'.

        Keys of partners and the ``source`` do not count.
        """
        for name in (STREAMLINED, AUTHORS):
            named_schedule = type(self).model_validate(name)
            if all(
                getattr(self, key) == getattr(named_schedule, key)
                for key in _MESSAGE_KEYS
            ):
                return name
        return OWN_SCHEDULE

    def messages(self, iteration: Ints) -> Ints:
        """Number the messages: (steps,) the index of the message that carries each
        step's samples.

        Messages are counted from 0 through the epoch. No message spans two iterations,
        so the last one of an iteration may carry fewer samples.

        Args:
            iteration: (steps,) the iteration of each step, not decreasing.
        """
        if not len(iteration):
            return np.zeros(0, np.int64)
        # index of each step among those of its iteration
        step_in_iteration = np.arange(len(iteration)) - np.searchsorted(
            iteration, iteration
        )
        samples_per_message = self.samples_per_message
        if samples_per_message == "iteration":
            samples_per_message = len(iteration)
        starts_message = step_in_iteration % samples_per_message == 0
        return np.asarray(np.cumsum(starts_message) - 1)


_MESSAGE_KEYS = tuple(key for key in MessageSchedule.model_fields if key != "source")
_KEYS_WITH_DEFAULT = frozenset(
    key
    for key in _MESSAGE_KEYS
    if MessageSchedule.model_fields[key].default is not None
)
"""The keys whose default is not None; a schedule written out in full has them all."""


class Pairing(Sourced):
    """The rule by which ranks find partners, and how long partners serve.

    Attributes:
        partner_rule: name of one of `simshuffle.workload.exchange.partners.RULES`, by
            which partners are found. 'random': one random permutation of all ranks,
            drawn from a seed that all share; 'random_pairs': one random matching, so
            that whoever a rank sends to sends to it; 'importance_sorted': a matching of
            the rank of i-th lowest importance with that of i-th highest, equals in an
            order drawn anew. In a matching of an odd number of ranks one keeps its
            samples.
        partner_scope: among whom: 'all' ranks, or those of the same 'rack', 'leaf'
            switch or 'host' (see `RankPlaces`). Of a matching within odd groups those
            left over are paired with one another.
        partner_lifetime: how long partners serve before others are found: one 'sample',
            one 'iteration' or the whole 'epoch'.
        partners_per_epoch: with a lifetime of an 'epoch': how many serve one after the
            other, for equal shares of its iterations.
        rank_importance: of a rank, for 'importance_sorted': the 'max', 'mean' or 'sum'
            over the samples of its shard. Where partners serve for less than an epoch,
            over those that it has not yet sent in this epoch.
        least_difference: for 'importance_sorted': pairs exchange nothing if their
            importances differ by less than this share of the higher one.
    """

    partner_rule: PartnerRuleName = "random"
    partner_scope: PartnerScope = "all"
    partner_lifetime: PartnerLifetime = "sample"
    partners_per_epoch: Count = 1
    rank_importance: RankImportance = "max"
    least_difference: Fraction = 0.0

    @model_validator(mode="after")
    def _refuse_unused_keys(self) -> Pairing:
        """Refuse keys that the partner rule does not use, and several partners where
        they have no effect.

        A key at its default is always accepted.
        """
        for rule_name, rule in RULES.items():
            for key in rule.keys if rule_name != self.partner_rule else ():
                if getattr(self, key) != Pairing.model_fields[key].default:
                    raise ValueError(
                        f"{key} can be set only where partner_rule is '{rule_name}'"
                    )
        if self.partners_per_epoch > 1 and self.partner_lifetime != "epoch":
            raise ValueError(
                "partners_per_epoch can be set only where partner_lifetime is 'epoch'"
            )
        return self

    @property
    def rule(self) -> PartnerRule:
        """The rule that ``partner_rule`` names."""
        return RULES[self.partner_rule]

    def gathered(self, shard_size: float) -> float:
        """Return how many importances each rank makes known to all others, to find
        partners.

        0 if partners do not depend on importance; 1 if one set of partners serves for
        the epoch. Else those of all ``shard_size`` samples, from which the other ranks
        can work out what is not yet sent later.
        """
        if not self.rule.needs_importance:
            return 0.0
        needs_one_value = (
            self.partner_lifetime == "epoch" and self.partners_per_epoch == 1
        )
        return 1.0 if needs_one_value else shard_size

    def pairing_of(self, iteration: Ints) -> Ints:
        """Index the pairing that serves in each step: (steps,) from 0 on, not
        decreasing.

        A new one begins with every step, with every iteration that has steps, or with
        each of ``partners_per_epoch`` equal shares of the iterations up to the last
        one that has steps.

        Args:
            iteration: (steps,) the iteration of each step, not decreasing.
        """
        if self.partner_lifetime == "sample":
            return np.arange(len(iteration))
        if self.partner_lifetime == "epoch" and len(iteration):
            # iteration i of n belongs to share i k // n of k equal ones
            iteration = iteration * self.partners_per_epoch // (int(iteration[-1]) + 1)
        return np.unique(iteration, return_inverse=True)[1]

    def random_orders(
        self, pairing: Ints, world_size: int, rng: np.random.Generator
    ) -> Ints:
        """Draw a random order of all ranks for each pairing (see `pairing_of`).

        All rules take the same numbers from ``rng``, which all ranks share.

        Args:
            pairing: (steps,) from `pairing_of`; without steps nothing is drawn.
            world_size: M.
            rng: from which a permutation is drawn for each pairing.

        Returns:
            (pairings, M) int64, the ranks in random order.
        """
        num_pairings = int(pairing[-1]) + 1 if len(pairing) else 0
        orders = [rng.permutation(world_size) for _ in range(num_pairings)]
        return np.array(orders, np.int64).reshape(num_pairings, world_size)

    def targets(
        self,
        order: Ints,
        importance: Floats | None = None,
        places: RankPlaces | None = None,
    ) -> Ints:
        """Find the rank that each rank sends to in each pairing.

        Args:
            order: (pairings, M) from `random_orders`.
            importance: (pairings, M) of each rank as the pairing begins, for rules that
                need it.
            places: of the ranks, for a ``partner_scope`` of less than all.

        Returns:
            (pairings, M) a permutation of the ranks in each row; a rank that is its own
            partner keeps its samples.

        Raises:
            ValueError: if the importance or the places that partners depend on are
                None.
        """
        if self.partner_scope == "all":
            group: Ints = np.zeros(order.shape[1], np.int64)
        elif places is None:
            reason = f"partners of the same {self.partner_scope} need the places of the ranks"
            raise ValueError(reason)
        else:
            group = getattr(places, self.partner_scope)
        return self.rule.partners(Pool(order, group, importance, self.least_difference))


class ExchangeSchedule(MessageSchedule, Pairing):
    """The schedule of strategies that find partners by a rule: `Pairing` says with whom
    samples are exchanged, `MessageSchedule` how.
    """

    @model_validator(mode="after")
    def _check_lifetime(self) -> ExchangeSchedule:
        """Refuse partners that change within a message."""
        if self.partner_lifetime == "sample" and self.samples_per_message != 1:
            raise ValueError(
                "partner_lifetime must be 'iteration' or 'epoch' when a message carries several"
                " samples"
            )
        return self


def spread_over_iterations(quota: int, per_iteration: float, iterations: int) -> Ints:
    """Spread ``quota`` steps over the iterations, by floor-with-carry.

    Each iteration gets ``per_iteration`` steps until the quota is used up; fractions
    are carried over. The last iteration gets all steps that are left, however
    many, so that the quota is met.

    Args:
        quota: steps of the epoch, each of a sample of every rank.
        per_iteration: steps of an iteration, perhaps a fraction.
        iterations: of the epoch, at least 1.

    Returns:
        (quota,) int64, the iteration (from 0) of every step, not decreasing.
    """
    # (iterations,) samples sent by the end of each iteration
    exact = per_iteration * np.arange(1, iterations + 1)
    sent_by_iteration = np.minimum(np.floor(exact + 1e-9), quota).astype(np.int64)
    sent_by_iteration[-1] = quota
    num_steps = np.diff(sent_by_iteration, prepend=0)
    return np.asarray(np.repeat(np.arange(iterations), num_steps))


def epoch_quota(
    exchange_fraction: float, num_samples: int, world_size: int, epoch: int
) -> int:
    """Return how many samples each rank exchanges in epoch ``epoch`` (from 1).

    Q N / M, rounded so that the sum over epochs never strays from its exact value by
    more than one rounding; at most the smallest shard, N // M. 0 where Q N / M rounds
    to nothing.
    """
    samples_per_epoch = exchange_fraction * num_samples / world_size
    quota = round(samples_per_epoch * epoch) - round(samples_per_epoch * (epoch - 1))
    smallest_shard = num_samples // world_size
    return min(quota, smallest_shard)
