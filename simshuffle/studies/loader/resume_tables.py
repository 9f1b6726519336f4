"""The table of loaders that were stopped and resumed, a row for each, with its
sentences.
"""

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

GOES_ON, BEGINS_AGAIN, REFUSES = "goes on", "begins again", "refuses"
HANGS, MISFIT = "hangs", "does not fit"
SENTENCE_OF_CONTINUATION = {
    "same": "The samples that follow are the expected samples, in the expected order.",
    "permuted": "The samples that follow are the expected samples, in another order.",
}
RESUMES = Schema(
    {
        "loader": text("name of the loader"),
        "library": text("library that the loader belongs to, with its version"),
        "change": text(
            "ranks before and after, as nodes x ranks, and workers where they change"
        ),
        "outcome": text(
            "what the loader does with its state: 'goes on', 'begins again' (it repeats all"
            " samples of the epoch so far), 'refuses', 'hangs', or 'does not fit' these shards"
            " and ranks",
            *(GOES_ON, BEGINS_AGAIN, REFUSES, HANGS, MISFIT),
        ),
        "says": text("what becomes of the epoch, in sentences"),
        "trained": maybe_count("rows of the epoch before the state was saved"),
        "rest": maybe_count("rows of the epoch after the state was saved"),
        "lost": maybe_count(
            "samples that the epoch lacks, but would have if it had not been broken off"
        ),
        "repeated": maybe_count(
            "rows after the state was saved whose sample the epoch already had before",
            head="again",
        ),
        "twice": maybe_count("samples that the epoch has more than once"),
        "twice_whole": maybe_count(
            "twice, if the epoch had not been broken off", head="twice\nunbroken"
        ),
        "never": maybe_count("samples that no epoch of the run has"),
        "continues": text(
            "what follows the break: the expected samples in the 'same' order or 'permuted', or"
            " 'other' samples; empty if nothing follows",
            *("same", "permuted", "other", ""),
        ),
        "skipped": maybe_count(
            "samples that are read and thrown away before the first batch"
        ),
        "files": maybe_count(
            "shards that are read beyond those of an unbroken epoch",
            head="files\nagain",
        ),
        "requests": maybe_count(
            "requests beyond those of an unbroken epoch", head="requests\nagain"
        ),
        "nbytes": maybe_count(
            "bytes that are read beyond those of an unbroken epoch",
            head="bytes\nagain",
            look="bytes",
        ),
        "read_s": maybe_amount(
            "s that the requests beyond those of an unbroken epoch take at least",
            head="s to\nread",
        ),
        "first_batch_s": maybe_amount(
            "s of reading, at least, until every rank has its first batch",
            head="s to 1st\nbatch",
        ),
        "batch_companions": maybe_share(
            "share of the pairs of samples in a batch of the broken epoch that share a batch"
            " again in the next epoch",
            head="together",
        ),
        "batch_companions_whole": maybe_share(
            "batch_companions, if the epoch had not been broken off",
            head="together\nunbroken",
        ),
    },
    key=("loader", "change"),
)


@dataclass(frozen=True)
class Reread:
    """Reads that the broken epoch causes in excess of an unbroken one, and their time."""

    skipped: int  # samples that are read and thrown away
    files: int  # shards
    requests: int  # to the storage
    nbytes: int  # bytes of these requests
    read_s: float  # s that these requests take at least
    first_batch_s: float  # s of reading, at least, until every rank has a batch


@dataclass(frozen=True)
class RepeatedPairs:
    """Share of the pairs of a batch that are in one batch again an epoch later."""

    batch_companions: float  # of the broken epoch's pairs
    batch_companions_whole: float  # of its pairs if it had not been broken off


def describe_change(old_readers: Readers, new_readers: Readers) -> str:
    """Return text on the readers before and after, such as '64x4 to 56x4': nodes x
    ranks of a node.

    Workers and sizes of batches stand there where they change.
    """
    parts = [
        f"{old_readers.nodes}x{old_readers.ranks} to {new_readers.nodes}x{new_readers.ranks}"
    ]
    if old_readers.workers != new_readers.workers:
        parts.append(f"{old_readers.workers} to {new_readers.workers} workers")
    if old_readers.batch_size != new_readers.batch_size:
        parts.append(f"batches of {old_readers.batch_size} to {new_readers.batch_size}")
    return ", ".join(parts)


def classify_outcome(rows_before: Batches, rows_after: Batches) -> str:
    """Return `GOES_ON`, or `BEGINS_AGAIN` if all samples from before the crash come
    again.

    Without rows before the crash, it is `GOES_ON`.
    """
    samples_before = np.unique(rows_before.sample)
    repeats_all = len(samples_before) > 0 and bool(
        np.isin(samples_before, rows_after.sample).all()
    )
    return BEGINS_AGAIN if repeats_all else GOES_ON


def count_meetings(
    rows_before: Batches,
    rows_after: Batches,
    next_epoch: Batches,
    unbroken_epoch: Batches,
    expected_next_epoch: Batches,
) -> RepeatedPairs:
    """Return the share of pairs of a batch that meet again, with and without the crash.

    Args:
        rows_before: rows of the broken epoch before the crash.
        rows_after: its rows after the crash.
        next_epoch: the epoch that follows.
        unbroken_epoch: the epoch without the crash.
        expected_next_epoch: the epoch that would have followed.
    """
    return RepeatedPairs(
        batch_companions(rows_before.append(rows_after), next_epoch),
        batch_companions(unbroken_epoch, expected_next_epoch),
    )


def make_row(
    loader: str,
    library: str,
    change: str,
    outcome: str,
    num_samples: int,
    *,
    account: Account | None = None,
    reread: Reread | None = None,
    repeated_pairs: RepeatedPairs | None = None,
    redistribution: RedistributionCost | None = None,
    reason: str = "",
) -> dict[str, Any]:
    """Return a row of `RESUMES`; numbers that are not known are NaN, ``continues`` is
    '' then.

    The sentences ``says`` are those of `describe_row`, and one on the redistribution.

    Args:
        loader: name of the loader.
        library: the libraries whose code it is, with versions.
        change: readers before and after, see `describe_change`.
        outcome: what the loader does with its state.
        num_samples: samples of the data set.
        account: what the epoch lost and repeated.
        reread: what is read again.
        repeated_pairs: how often pairs of samples meet again.
        redistribution: what ranks read and send to take over from others.
        reason: what the state holds; of a loader that refuses or does not fit, the
            error.
    """
    row: dict[str, Any] = dict.fromkeys(RESUMES.columns, math.nan)
    row |= {"loader": loader, "library": library, "change": change, "outcome": outcome}
    row["continues"] = ""
    for record in (account, reread, repeated_pairs):
        row |= {} if record is None else asdict(record)
    sentences = [describe_row(row, num_samples, reason)]
    if redistribution is not None and (redistribution.read or redistribution.sent):
        sentences.append(
            f"{redistribution.read:,} samples of ranks that are gone are read again, and"
            f" {redistribution.sent:,} are sent between ranks."
        )
    return row | {"says": " ".join(sentences)}


def describe_row(row: Mapping[str, Any], num_samples: int, reason: str = "") -> str:
    """Return sentences on what became of an epoch.

    Args:
        row: the row of `RESUMES`, without sentences. Of a loader that goes on or begins
            again it must have the counts.
        num_samples: samples of the data set.
        reason: as in `make_row`.
    """
    outcome = row["outcome"]
    if outcome == MISFIT:
        return f"It does not work with these shards and ranks: {reason}"
    if outcome == REFUSES:
        return f"It refuses to go on: {reason.rstrip('.')}."
    if outcome == HANGS:
        return "It hangs: no batch comes any more."
    lost = row["lost"]
    twice = row["twice"]
    twice_unbroken = row["twice_whole"]
    losses = [f"{lost:,} of {num_samples:,} samples are lost"] * bool(lost)
    if twice > twice_unbroken:
        comparison = f", where {twice_unbroken:,} would" if twice_unbroken else ""
        total = "" if lost else f" of {num_samples:,} samples"
        losses.append(f"{twice:,}{total} come more than once{comparison}")
    loss_text = " and ".join(losses) or "nothing is lost and nothing comes again"
    if outcome == BEGINS_AGAIN:
        loss_text = f"The epoch begins again: {loss_text}"
    else:
        loss_text = loss_text[0].upper() + loss_text[1:]
    loss_text = f"{loss_text}; its state holds {reason}." if reason else f"{loss_text}."
    sentences = [loss_text, SENTENCE_OF_CONTINUATION.get(row["continues"], "")]
    if row["never"]:
        sentences.append(f"{row['never']:,} samples are in no epoch of the run.")
    if row["skipped"] > 0:
        sentences.append(
            f"{row['skipped']:,} samples are read and thrown away before the first batch."
        )
    return " ".join(text for text in sentences if text)


def is_exact(row: Mapping[Any, Any]) -> bool:
    """Return whether a loader goes on, loses nothing, and repeats nothing because of
    the crash.
    """
    return (
        row["outcome"] == GOES_ON
        and not row["lost"]
        and row["twice"] <= row["twice_whole"]
    )
