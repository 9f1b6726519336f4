"""The tables of a comparison, and the sources of samples that their columns name."""

from __future__ import annotations

from simshuffle.study.schema import Schema, amount, count, share, text

SOURCES = ("pfs", "own_memory", "own_ssd", "remote_memory", "remote_ssd", "staging_buffer")
PFS, OWN_MEMORY, OWN_SSD, REMOTE_MEMORY, REMOTE_SSD, READY = range(len(SOURCES))
"""Codes of the sources; READY: the sample lies in the staging buffer before it is needed, as
nowhere but in the lower bound."""

_CASE, _POLICY = text("name of the case: the data set"), text("name of the policy")
STORED = {
    "policies": Schema(
        {
            "case": _CASE,
            "policy": _POLICY,
            "problem": text("why the policy cannot be used; empty if it can"),
            "coverage": share(
                "share of the data set that is ever read, by all workers together; below 1 training"
                " learns from less",
                empty=True,
            ),
            "first_s": amount("s of the first epoch, with the staging before it", empty=True),
            "steady_s": amount("s of the last epoch", empty=True),
            "total_s": amount("s of all epochs", empty=True),
            "first_ratio": amount("first_s over that of perfect", empty=True),
            "steady_ratio": amount("steady_s over that of perfect", empty=True),
            "total_ratio": amount("total_s over that of perfect", empty=True),
            "staging_s": amount("s of reading and writing before training", empty=True),
            "memory_nbytes": amount(
                "bytes of memory that a worker fills with samples it keeps, beside the staging"
                " buffer",
                empty=True,
            ),
            "ssd_nbytes": amount("bytes of SSD that a worker fills", empty=True),
            **{
                f"{source}_share": share(
                    f"share of the bytes of all epochs from {source.replace('_', ' ')}", empty=True
                )
                for source in SOURCES
            },
        },
        key=("case", "policy"),
    ),
    "epochs": Schema(
        {
            "case": _CASE,
            "policy": _POLICY,
            "epoch": count(
                "number of the epoch, from 0; epoch 0 includes the staging before training"
            ),
            "time_s": amount(
                "s, from the end of the epoch before to the end of training on its last sample"
            ),
            "compute_s": amount("s of it in training"),
            "stall_s": amount("s of it in which training waited; in epoch 0 with the staging"),
            "readers": amount("workers that read from the file system at a moment; 0 if none does"),
            **{
                f"{source}_nbytes": amount(
                    f"bytes that a worker took from {source.replace('_', ' ')}"
                )
                for source in SOURCES
            },
            **{
                f"{source}_fetch_s": amount(
                    f"s that a worker's threads together fetched from {source.replace('_', ' ')}"
                )
                for source in SOURCES[:READY]
            },
        },
        key=("case", "policy", "epoch"),
    ),
}
