"""Facts of a plan in ``meta.json``, for its figure and its texts."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

Amount = Annotated[float, Field(ge=0, le=1e100)]


class AccuracyCurveFacts(TypedDict):
    """Facts that an accuracy curve gives of a setting."""

    strategy: str  # short name, such as 'partial'
    exchange_fraction: float | None  # Q; None under global shuffle, or not known
    epochs: int | None  # epochs to the target; None if the curve never reaches it
    best: float  # highest accuracy, a share from 0 to 1


class PlanQuestion(TypedDict):
    """The request of a plan in plain values: command of its runs, strategies, prices
    and limits.
    """

    command: str  # ``simshuffle run`` without failures; settings are added to it
    whole: str  # arguments by which other verbs read the scenario with its failures
    strategies: list[str | dict[str, object]]  # as ``--set workload.exchange`` has them
    prices: dict[str, Amount]  # by name, of `PRICES`
    budget: Amount | None  # largest cost of the training; None without a limit
    io_share: float  # share of an epoch that I/O may take of the smallest file system
    target: float | None  # accuracy to reach (0 to 1); None if accuracy does not count
    learned: list[AccuracyCurveFacts]  # empty without accuracy curves
    epochs: int  # epochs of the training where there are no curves
    exact: NotRequired[bool]  # true to simulate everything; true where it lacks
    units: NotRequired[dict[str, str]]  # unit that the user wrote, by dotted key
    plan_words: NotRequired[str]  # command of this plan


class Hidden(TypedDict):
    """The largest exchange that adds at most 1 % to an epoch."""

    samples: int  # that each rank sends in an epoch; 0 if one adds too much
    exchange_fraction: float  # Q of so many samples
    bottleneck: str  # mechanism that ends it; '' if not known (without --exact)


class FileSystem(TypedDict):
    """The share of I/O with the smallest file system, and its files/s and bytes/s where
    the other never binds.

    ``alone`` is None where no file system is enough; ``io`` is then the share with one
    that never binds.
    """

    io: float  # share of an epoch, from 0 to 1
    alone: list[float] | None  # [files/s, bytes/s]


class DoubtfulTurn(TypedDict):
    """A turning point of closed forms that no simulation confirms, and why not."""

    input: str  # name of the input, such as 'open rate'
    shown: str  # value of the input there, with a unit
    factor: Amount  # over the value now
    after: str  # strategy that closed forms choose there; '' if none
    why: str  # 'not simulated', or what simulations say instead


class PlanFindings(TypedDict):
    """Facts that a plan found beside its tables."""

    scenario: str  # its name
    ranks: int
    hosts: int  # that the ranks fill, without spare ones
    samples_of_rank: float  # samples of the data set over ranks
    tier: str  # 'ssd' or 'memory': where hosts store samples
    not_steady: NotRequired[str]  # sentence on caches that still fill; '' if none do
    hidden: Hidden | None  # None where it was not searched
    # largest Q that a host has room for, at most 1; below 0 where no shard fits
    largest_fraction: float
    rows: dict[str, int]  # rows of tables ``probes`` and ``turns``
    lacking: list[str]  # keys without which failures do not count; [] if they do
    # share of the time that a job waits for hosts, by simulated strategy; {} without
    # failures
    waiting: dict[str, float]
    io: dict[str, FileSystem]  # by strategy whose file system was searched
    doubtful: NotRequired[list[DoubtfulTurn]]
    # time tolerance, by strategy, of those whose runs were made coarser
    coarse: NotRequired[dict[str, Amount]]
    not_searched: NotRequired[list[str]]  # phrases on what would take over a minute


class PlanFacts(TypedDict):
    """The facts from which the texts of a plan are built: its request and its findings."""

    asked: PlanQuestion
    plan: PlanFindings
