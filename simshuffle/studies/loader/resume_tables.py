"""The table of loaders that were broken off and went on, a row for each, with what to say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simshuffle.studies.loader.tables import maybe_amount, maybe_count, maybe_share
from simshuffle.study.schema import Schema, text
from simshuffle.workload.exchange.dealing import RedistributionCost
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import Account, batch_companions
from simshuffle.workload.resuming.law import Batches

GOES_ON, AGAIN, REFUSES = "goes on", "begins again", "refuses"
HANGS, MISFIT = "hangs", "does not fit"
WHOLE = {
    "same": "What follows is what would have followed.",
    "permuted": "What follows are the samples that would have followed, in another order.",
}
RESUMES = Schema(
    {
        "loader": text("name of the loader"),
        "library": text("whose code it is, and its version"),
        "change": text("ranks before and after, as nodes x ranks, and workers where they change"),
        "outcome": text(
            "what it does with its state: 'goes on', 'begins again' (all that was trained on is"
            " trained on again), 'refuses', 'hangs', or 'does not fit' these shards and ranks",
            *(GOES_ON, AGAIN, REFUSES, HANGS, MISFIT),
        ),
        "says": text("what becomes of the epoch, in a sentence or three"),
        "trained": maybe_count("rows of the epoch before the state was saved"),
        "rest": maybe_count("rows of the epoch after it"),
        "lost": maybe_count("samples that the epoch would have had, and has not"),
        "repeated": maybe_count(
            "rows after the state whose sample the epoch had before it", head="again"
        ),
        "twice": maybe_count("samples that the epoch has more than once"),
        "twice_whole": maybe_count(
            "the same if it had not been broken off", head="twice\nunbroken"
        ),
        "never": maybe_count("samples that no epoch of the run has"),
        "continues": text(
            "what follows: the 'same' as would have followed, the same samples 'permuted', or"
            " 'other' samples; empty if nothing does",
            *("same", "permuted", "other", ""),
        ),
        "skipped": maybe_count("samples that are read and thrown away before the first batch"),
        "files": maybe_count(
            "shards that are read more than if the epoch had not been broken off",
            head="files\nagain",
        ),
        "requests": maybe_count("the same of requests", head="requests\nagain"),
        "nbytes": maybe_count("the same of bytes", head="bytes\nagain", look="bytes"),
        "read_s": maybe_amount("s that these requests take at least", head="s to\nread"),
        "first_batch_s": maybe_amount(
            "s that all takes at least which is read before every rank has a batch",
            head="s to 1st\nbatch",
        ),
        "batch_companions": maybe_share(
            "share of the pairs of a batch of the broken epoch that are in one batch again in the"
            " next",
            head="together",
        ),
        "batch_companions_whole": maybe_share(
            "the same if it had not been broken off", head="together\nunbroken"
        ),
    },
    key=("loader", "change"),
)


@dataclass(frozen=True)
class Reread:
    """What is read more than if the epoch had not been broken off, and how long it takes."""

    skipped: int  # samples that are read and thrown away
    files: int  # shards
    requests: int
    nbytes: int
    read_s: float
    first_batch_s: float


@dataclass(frozen=True)
class Meetings:
    """Share of the pairs of a batch that are in one batch again an epoch later."""

    batch_companions: float  # of the broken epoch
    batch_companions_whole: float  # of the same if it had not been broken off


def change_of(before: Readers, after: Readers) -> str:
    """Who read, and who reads now: '64x4 to 56x4', with workers and batches where they change."""
    parts = [f"{before.nodes}x{before.ranks} to {after.nodes}x{after.ranks}"]
    if before.workers != after.workers:
        parts.append(f"{before.workers} to {after.workers} workers")
    if before.batch_size != after.batch_size:
        parts.append(f"batches of {before.batch_size} to {after.batch_size}")
    return ", ".join(parts)


def outcome_of(before: Batches, rest: Batches) -> str:
    """Whether the epoch goes on, or begins again: then all samples of before come again."""
    done = np.unique(before.sample)
    again = len(done) > 0 and bool(np.isin(done, rest.sample).all())
    return AGAIN if again else GOES_ON


def meetings(
    before: Batches, rest: Batches, after: Batches, whole: Batches, due: Batches
) -> Meetings:
    """`Meetings` of an epoch that had ``before`` and then ``rest``, with the epoch ``after`` it; it
    would have been ``whole``, and the next would have been ``due``."""
    return Meetings(batch_companions(before.append(rest), after), batch_companions(whole, due))


def row_of(
    loader: str,
    library: str,
    change: str,
    outcome: str,
    size: int,
    *,
    account: Account | None = None,
    reread: Reread | None = None,
    mixing: Meetings | None = None,
    moved: RedistributionCost | None = None,
    why: str = "",
) -> dict[str, Any]:
    """A row of `RESUMES`, for a set of ``size`` samples; what is not known is empty. ``why`` is
    what the state holds, and of a loader that refuses or does not fit the error."""
    row: dict[str, Any] = dict.fromkeys(RESUMES.columns, math.nan)
    row |= {"loader": loader, "library": library, "change": change, "outcome": outcome}
    row["continues"] = ""
    for part in (account, reread, mixing):
        row |= {} if part is None else asdict(part)
    says = [sentence(row, size, why)]
    if moved is not None and (moved.read or moved.sent):
        says.append(
            f"{moved.read:,} samples of ranks that are gone are read again, and {moved.sent:,} are"
            " sent between ranks."
        )
    return row | {"says": " ".join(says)}


def sentence(row: Mapping[str, Any], size: int, why: str = "") -> str:
    """What became of the epoch of ``size`` samples, in plain words, from a row without them."""
    outcome = row["outcome"]
    if outcome == MISFIT:
        return f"It does not work with these shards and ranks: {why}"
    if outcome == REFUSES:
        return f"It refuses to go on: {why.rstrip('.')}."
    if outcome == HANGS:
        return "It hangs: no batch comes any more."
    lost, twice, usual = row["lost"], row["twice"], row["twice_whole"]
    parts = [f"{lost:,} of {size:,} samples are lost"] * bool(lost)
    if twice > usual:
        due = f", where {usual:,} would" if usual else ""
        parts.append(f"{twice:,}{'' if lost else f' of {size:,} samples'} come more than once{due}")
    said = " and ".join(parts) or "nothing is lost and nothing comes again"
    said = f"The epoch begins again: {said}" if outcome == AGAIN else said[0].upper() + said[1:]
    said = f"{said}; its state holds {why}." if why else f"{said}."
    more = [said, WHOLE.get(row["continues"], "")]
    if row["never"]:
        more.append(f"{row['never']:,} samples are in no epoch of the run.")
    if row["skipped"] > 0:
        more.append(f"{row['skipped']:,} samples are read and thrown away before the first batch.")
    return " ".join(each for each in more if each)


def right(row: Mapping[Any, Any]) -> bool:
    """Whether a loader goes on with nothing lost, and nothing more than once that would not have
    been."""
    return row["outcome"] == GOES_ON and not row["lost"] and row["twice"] <= row["twice_whole"]
