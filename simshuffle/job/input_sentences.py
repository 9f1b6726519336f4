"""Say what the bounds of a run's input leave out: single files, and few loader workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simshuffle.job.plan.reading_bounds import DECODE
from simshuffle.spec.units import Dimension, readable

NOTABLE_DECODE = 0.1
"""Share of an epoch from which on decoding by the loader workers is named."""


def describe_slower_input(row: Mapping[str, Any]) -> list[str]:
    """Return sentences on staging of single files, and on decoding by fewer threads
    than cores; the latter from `NOTABLE_DECODE` of the epoch on.

    Args:
        row: of `simshuffle.job.verdict.verdict`.
    """
    sentences = []
    if row["staging_files_s"] > 1.01 * row["staging_s"]:
        duration = readable(row["staging_files_s"], Dimension.SECONDS, 2)
        sentences.append(
            f"Staging copies an archive; files opened one by one take {duration}"
            " (workload.staging.format: files)"
        )
    decode_s = row["decode_by_workers_s"]
    least_s = max(1.01 * row["resources_s"][DECODE], NOTABLE_DECODE * row["epoch_s"])
    if decode_s > least_s:
        duration = readable(decode_s, Dimension.SECONDS, 3)
        sentences.append(
            f"Decode counts all cores of a host; the loader workers take {duration} to"
            " decode (workload.loader.workers)"
        )
    return sentences
