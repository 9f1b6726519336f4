"""The tables of loaders and of their settings."""

from __future__ import annotations

from functools import partial

import pandas as pd

from simshuffle.study.schema import Schema, amount, count, flag, real, share, text

maybe_count = partial(count, empty=True)
maybe_share = partial(share, empty=True)
maybe_amount = partial(amount, empty=True)
"""Columns that may be empty."""
WINDOWS = 10
"""Equal parts of an epoch."""
_LOADER = text("name of the loader's order")

STORED = {
    "loaders": Schema(
        {
            "loader": _LOADER,
            "problem": text(
                "why the loader does not work on this shape; empty if it does"
            ),
            "unit": text(
                "what is fetched at once: sample, block or shard",
                "sample",
                "block",
                "shard",
            ),
            "first_requests": maybe_count(
                "requests to the remote storage in the first epoch",
                head="requests\nfirst",
            ),
            "first_nbytes": maybe_count(
                "bytes of these requests", head="bytes\nfirst", look="bytes"
            ),
            "last_requests": maybe_count(
                "requests in the last epoch", head="requests\nlast"
            ),
            "last_nbytes": maybe_count(
                "bytes of these requests", head="bytes\nlast", look="bytes"
            ),
            "hit_rate": maybe_share(
                "share of the samples of the last epoch that were on their node already",
                head="hits\nlast",
                look=".1fpercent",
            ),
            "held_nbytes": maybe_count(
                "the most bytes that one node held at once",
                head="held by\na node",
                look="bytes",
            ),
            "never": maybe_count(
                "samples that an epoch does not hand out, in the epoch with most of"
                " them"
            ),
            "surplus": maybe_count(
                "rows that repeat a sample of their epoch, in the epoch with most"
                " of them",
                head="twice",
            ),
            "imbalance": maybe_amount(
                "samples that the rank with most has beyond the mean, over the mean",
                head="uneven",
                look=".2gpercent",
            ),
            "batch_companions": maybe_share(
                "share of the pairs of samples in a rank's batch that share a batch again an"
                " epoch later; empty for a single epoch",
                head="together\nin a batch",
            ),
            "rank_companions": maybe_share(
                "share of the pairs of samples of a rank that share a rank again an"
                " epoch later",
                head="together\non a rank",
            ),
            "moves": maybe_share(
                "share of the samples that are on another node than an epoch before",
                head="other\nnode",
            ),
            "divergence": maybe_amount(
                "divergence in nats of the labels of a rank from the labels of all samples, mean"
                " over ranks and epochs; samples are stored sorted by label",
                head="labels\nnats",
                look=".2g",
            ),
            "position_entropy": maybe_share(
                "how much the place of a sample in the epoch varies over epochs: 0 for never, 1"
                " for as much as possible",
                head="place\nvaries",
                look=".2f",
            ),
            "shards": maybe_amount(
                "shards in the batches of all ranks of an iteration, mean",
                head="shards a\nstep",
            ),
            "end_shards": maybe_amount(
                "shards in these batches in the last tenth of an epoch, mean",
                head="at the\nend",
            ),
        },
        key=("loader",),
    ),
    "epochs": Schema(
        {
            "loader": _LOADER,
            "epoch": count("number of the epoch, from 0"),
            "samples": count("rows: samples that were handed out"),
            "never": count("samples that were not handed out"),
            "repeated": count("samples that were handed out more than once"),
            "surplus": count("rows beyond the first of each sample"),
            "least": count("samples of the rank that had fewest"),
            "most": count("samples of the rank that had most"),
            "requests": count("requests to the remote storage"),
            "nbytes": count("bytes of these requests"),
            "hits": count("samples that were on their node already"),
            "evictions": count("pieces that nodes dropped to make room for others"),
            "held_nbytes": count("the most bytes that one node held at once"),
            "batch_companions": maybe_share(
                "share of the pairs of samples in a rank's batch of the epoch before that share a"
                " batch again"
            ),
            "rank_companions": maybe_share(
                "share of the pairs of samples of a rank that share a rank again an"
                " epoch later"
            ),
            "moves": maybe_share(
                "share of the samples on another node than an epoch before"
            ),
            "divergence": amount(
                "divergence in nats of the labels of a rank from the labels of all samples, mean"
                " over ranks"
            ),
        },
        key=("loader", "epoch"),
    ),
    "windows": Schema(
        {
            "loader": _LOADER,
            "window": count("tenth of the epoch, from 0"),
            "shards": real(
                "shards in the batches of all ranks of an iteration, mean; empty where the tenth"
                " has no iteration",
                0,
                empty=True,
            ),
        },
        key=("loader", "window"),
    ),
}
LIMITS = ("connections", "requests", "bandwidth")
"""Of a store, what may bind."""
STORE = Schema(
    {
        "loader": _LOADER,
        "first_s": amount(
            "s that the requests of the first epoch take at least", head="s\nfirst"
        ),
        "last_s": amount("the same of the last epoch", head="s\nlast"),
        "limit": text("limit of the store that bounds the first epoch", *LIMITS),
        "first_usd": amount(
            "US dollars for the requests and bytes of the first epoch",
            head="US$\nfirst",
            look=".2g",
        ),
        "last_usd": amount("the same of the last epoch", head="US$\nlast", look=".2g"),
    },
    key=("loader",),
)
"""The derived table ``store``."""


LOOP, UNEVEN = "loop", "uneven batches"
READING, DECODING = "worker reads", "worker decodes"
RESOURCES = (
    *(
        "file opens",
        "PFS bandwidth",
        "PFS client",
        "HCAs",
        "SSD",
        "memory",
        "decode",
        "PCIe",
    ),
    *("store requests", "store bandwidth", "store hosts"),
)
"""Resources that ranks share, as `simshuffle.job.plan.reading_bounds` names them."""
MAX_LOSS = 0.001
"""So much of the time may be lost by waiting where it is said that nothing stalls."""
_RUN = text("name of the run")
SETTING_COLUMNS = {
    "workers": count("workers of a rank, each loading whole batches", 1),
    "threads": count("threads of a worker", 1),
    "prefetch": count(
        "batches that a rank requests ahead, workers x prefetch_factor", 1
    ),
}
_ANSWER = {
    "samples_per_s": amount("samples that all ranks train on in a second", head="samples/s"),
    "waiting": share(
        "share of the time in which loops wait for batches, after the start of an epoch",
        look=".2gpercent",
    ),
    "stall_every": maybe_amount(
        "mean number of steps from one stall (a wait of more than a twentieth of a step) to the"
        " next; empty without stalls",
        head="steps from\nstall to stall"),
    "stall_s": amount(
        "s of the longest stall; 0 without stalls", head="longest\n(s)", look=".2g or -"
    ),
    "first_s": amount("s until the first batch of an epoch", head="first\nbatch (s)"),
    "memory_nbytes": amount(
        "most bytes of batches that the ranks of a host hold at once", head="memory\nof a host",
        look="bytes",
    ),
    "binds": text(
        "what bounds the speed of the loops: 'loop' for the loops themselves, 'worker reads' or"
        " 'worker decodes' for the longest work of their workers, 'uneven batches', or a shared"
        " resource",
        *(LOOP, UNEVEN, READING, DECODING),
        *RESOURCES,
    ),
}  # fmt: skip
SETTINGS = Schema(
    {
        "run": _RUN,
        **SETTING_COLUMNS,
        "own": flag("whether this is the scenario's own setting"),
        "needed_per_s": amount(
            "samples that loops train on in a second if they never wait"
        ),
        **_ANSWER,
        "host_nbytes": amount("bytes of a host's memory"),
        "step_s": amount("s of a step that never waits"),
        "read_s": amount("s in which a worker alone reads a batch, mean"),
        "decode_s": amount("s in which a worker alone decodes a batch, mean"),
        "resource": text(
            "the shared resource that takes longest for a batch", *RESOURCES
        ),
        "resource_s": amount("s that this resource takes for a batch of every rank"),
    },
    key=("run", *SETTING_COLUMNS),
)
ANSWERS = Schema(
    {
        "run": _RUN,
        "needed_per_s": amount(
            "samples that loops train on in a second if they never wait",
            head="needed\nper s",
        ),
        **SETTING_COLUMNS,
        **_ANSWER,
    },
    key=("run",),
)
"""The derived table ``answers``: the row of `choose_settings` for each run."""


def choose_settings(settings: pd.DataFrame) -> pd.DataFrame:
    """Return for each run the smallest setting that wastes nothing: columns `ANSWERS`.

    It has the fewest threads, then workers, then batches ahead, of the settings that
    bring within `MAX_LOSS` as many samples a second as the run's best. Loops may wait
    under this setting, too, if they wait under all.
    """
    order = ["threads", "workers", "prefetch"]
    rows = []
    for _, run_settings in settings.groupby("run", sort=False):
        min_samples_per_s = run_settings["samples_per_s"].max() * (1 - MAX_LOSS)
        rows.append(
            run_settings[run_settings["samples_per_s"] >= min_samples_per_s]
            .sort_values(order)
            .iloc[0]
        )
    return ANSWERS.framed([row.to_dict() for row in rows])
