"""The tables of loaders."""

from __future__ import annotations

from simshuffle.study.schema import Schema, amount, count, real, share, text

WINDOWS = 10
"""Equal parts of an epoch."""
_LOADER = text("name of the loader's order")

STORED = {
    "loaders": Schema(
        {
            "loader": _LOADER,
            "problem": text("why it cannot be had on this shape; empty if it can"),
            "unit": text(
                "what is fetched at once: sample, block or shard", "sample", "block", "shard"
            ),
            "first_requests": count(
                "requests to the remote storage in the first epoch",
                empty=True,
                head="requests\nfirst",
            ),
            "first_nbytes": count("bytes of these", empty=True, head="bytes\nfirst", look="bytes"),
            "last_requests": count("requests in the last epoch", empty=True, head="requests\nlast"),
            "last_nbytes": count("bytes of these", empty=True, head="bytes\nlast", look="bytes"),
            "hit_rate": share(
                "share of the samples of the last epoch that were on their node already",
                empty=True,
                head="hits\nlast",
                look=".1fpercent",
            ),
            "held_nbytes": count(
                "the most bytes that one node held at once",
                empty=True,
                head="held by\na node",
                look="bytes",
            ),
            "never": count(
                "samples that an epoch does not hand out; of the epoch with most", empty=True
            ),
            "surplus": count(
                "rows of an epoch that repeat a sample of it; of the epoch with most",
                empty=True,
                head="twice",
            ),
            "imbalance": amount(
                "how many more samples than the mean a rank has at most, over the mean",
                empty=True,
                head="uneven",
                look=".2gpercent",
            ),
            "batch_companions": share(
                "share of the pairs of a rank's batch that are in one batch again an epoch"
                " later; empty for a single epoch",
                empty=True,
                head="together\nin a batch",
            ),
            "rank_companions": share(
                "the same of the pairs of a rank", empty=True, head="together\non a rank"
            ),
            "moves": share(
                "share of the samples that are on another node than an epoch before",
                empty=True,
                head="other\nnode",
            ),
            "divergence": amount(
                "nats between the labels of a rank and those of all, mean over ranks and"
                " epochs; samples stand sorted by label",
                empty=True,
                head="labels\nnats",
                look=".2g",
            ),
            "position_entropy": share(
                "how much the part of the epoch in which a sample comes varies, of 1",
                empty=True,
                head="place\nvaries",
                look=".2f",
            ),
            "shards": amount(
                "shards in the batches of all ranks of an iteration, mean",
                empty=True,
                head="shards a\nstep",
            ),
            "end_shards": amount(
                "the same in the last tenth of an epoch", empty=True, head="at the\nend"
            ),
        },
        key=("loader",),
    ),
    "epochs": Schema(
        {
            "loader": _LOADER,
            "epoch": count("number of the epoch, from 0"),
            "samples": count("rows: samples that were handed out"),
            "never": count("samples that were not"),
            "repeated": count("samples that were more than once"),
            "surplus": count("rows beyond the first of each sample"),
            "least": count("samples of the rank that had fewest"),
            "most": count("samples of the rank that had most"),
            "requests": count("requests to the remote storage"),
            "nbytes": count("bytes of these"),
            "hits": count("samples that were on their node already"),
            "evictions": count("pieces that a node dropped for others"),
            "held_nbytes": count("the most bytes that one node held at once"),
            "batch_companions": share(
                "share of the pairs of a rank's batch an epoch before that are in one batch again",
                empty=True,
            ),
            "rank_companions": share("the same of the pairs of a rank", empty=True),
            "moves": share("share of the samples on another node than an epoch before", empty=True),
            "divergence": amount("nats between the labels of a rank and those of all, mean"),
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
OF_STORE = Schema(
    {
        "loader": _LOADER,
        "first_s": amount("s that the requests of the first epoch take at least", head="s\nfirst"),
        "last_s": amount("the same of the last epoch", head="s\nlast"),
        "limit": text("what of the store binds in the first epoch", *LIMITS),
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
