"""Facts of a plan in ``meta.json``, for its figure and its texts."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

Amount = Annotated[float, Field(ge=0, le=1e100)]


class AccuracyCurveFacts(TypedDict):
    """Facts that an accuracy curve gives of a setting."""

    strategy: str
    exchange_fraction: float | None
    epochs: int | None
    best: float


class PlanQuestion(TypedDict):
    """The request of a plan in plain values: command of its runs, strategies, prices
    and limits.
    """

    command: str
    whole: str
    strategies: list[str | dict[str, object]]
    prices: dict[str, Amount]
    budget: Amount | None
    io_share: float
    target: float | None
    learned: list[AccuracyCurveFacts]
    epochs: int
    exact: NotRequired[bool]
    units: NotRequired[dict[str, str]]
    plan_words: NotRequired[str]


class Hidden(TypedDict):
    """The largest exchange that adds nothing."""

    samples: int
    exchange_fraction: float
    bottleneck: str


class FileSystem(TypedDict):
    """The share of I/O with the smallest file system, and its files/s and bytes/s where
    the other never binds.

    ``alone`` is None where no file system is enough.
    """

    io: float
    alone: list[float] | None


class DoubtfulTurn(TypedDict):
    """A turning point of closed forms that no simulation confirms, and why not."""

    input: str
    shown: str
    factor: Amount
    after: str
    why: str


class PlanFindings(TypedDict):
    """Facts that a plan found beside its tables."""

    scenario: str
    ranks: int
    hosts: int
    samples_of_rank: float
    tier: str
    not_steady: NotRequired[str]
    hidden: Hidden | None
    largest_fraction: float
    rows: dict[str, int]
    lacking: list[str]
    waiting: dict[str, float]
    io: dict[str, FileSystem]
    doubtful: NotRequired[list[DoubtfulTurn]]
    coarse: NotRequired[dict[str, Amount]]
    not_searched: NotRequired[list[str]]


class PlanFacts(TypedDict):
    """The facts from which the texts of a plan are built: its request and its findings."""

    asked: PlanQuestion
    plan: PlanFindings
