"""The gain from a cache tier before a run is simulated: how many reads it answers, and
how much shorter that makes an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simshuffle.errors import Problem
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.reading_bounds import MOST_EPOCHS, reads_elsewhere
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.units import Dimension, readable

LITTLE = 0.05
"""Share of an epoch below which a gain is warned of."""
NOTHING = 5e-5
"""Share of an epoch below which two are equally long: less is rounding."""


def tier_gain(scenario: Scenario) -> dict[str, Any]:
    """Return what is expected of the cache tier in the last epoch, as plain values.

    A mapping with one key, 'cache_tier'; {} if samples are read through no tier. Its
    value has ``eviction``, the tier's policy; ``held``, the share of the data set for
    which it has room, at most 1; and ``hits``, the share of the reads that page caches
    miss that it answers. Lower bounds of the epoch (s) are ``epoch_s`` with the tier,
    ``without_s`` no tier, and ``with_all_s`` one that holds all samples from the start.
    """
    tier = scenario.used_tier
    if tier is None:
        return {}
    size = scenario.workload.dataset.nbytes

    def least(changes: Mapping[str, Any] | None) -> float:
        """Lower bound (s) of the last epoch with ``changes`` of the tier; None removes
        the tier.
        """
        update = None if changes is None else tier.model_copy(update=changes)
        cluster = scenario.cluster.model_copy(update={"cache_tier": update})
        return float(bounds(scenario.model_copy(update={"cluster": cluster})).epoch)

    _, hits = reads_elsewhere(scenario, min(scenario.epochs, MOST_EPOCHS))
    everything = {"capacity": 2.0 * size, "eviction": "none", "warm": True}
    return {
        "cache_tier": {
            "eviction": tier.eviction,
            "held": min(tier.capacity / size, 1.0),
            "hits": hits,
            "epoch_s": least({}),
            "without_s": least(None),
            "with_all_s": least(everything),
        }
    }


def tier_sentence(facts: Mapping[str, Any]) -> str:
    """Return the facts of `tier_gain`, below its key 'cache_tier', as sentences.

    The last full stop is left out.
    """

    def seconds(name: str) -> str:
        return readable(facts[name], Dimension.SECONDS, 3)

    eviction_clause = (
        "" if facts["held"] == 1.0 else f", evicting as {facts['eviction']} does"
    )
    return (
        f"Cache tier: room for {_percent(facts['held'])} of the data{eviction_clause}. It answers"
        f" {_percent(facts['hits'])} of the last epoch's reads from storage, which takes at least"
        f" {seconds('epoch_s')}; {seconds('without_s')} without the tier, {seconds('with_all_s')}"
        " with one that holds everything"
    )


def _percent(share: float) -> str:
    """Return a share as text, in percent of three digits."""
    return f"{100.0 * share:.3g} %"


def tier_warnings(scenario: Scenario) -> list[Problem]:
    """Return a warning if a cache tier is not used, or shortens the last epoch little.

    Little is a share less than `LITTLE`, by lower bounds; a tier that makes the epoch
    longer counts, too. [] if neither holds, or without a tier.
    """
    path = "cluster.cache_tier"
    cluster = scenario.cluster
    if cluster.cache_tier is None:
        return []
    if scenario.used_tier is None:
        rule = f"is not used: samples are read from {scenario.workload.source}"
        remedy = "Set workload.exchange.source to pfs or object_store, or leave it out."
        return [
            Problem(
                path,
                rule,
                readable(cluster.cache_tier.capacity, Dimension.NBYTES, 3),
                remedy,
            )
        ]
    facts = tier_gain(scenario)["cache_tier"]
    gain = 1.0 - facts["epoch_s"] / facts["without_s"]
    if gain >= LITTLE:
        return []
    comparison = f"{100 * abs(gain):.2g} % {'shorter' if gain > 0 else 'longer'}"
    comparison = (
        "no shorter" if abs(gain) < NOTHING else comparison
    )  # rounding is no difference
    rule = f"makes the last epoch {comparison} than no tier would"
    if 1.0 - facts["with_all_s"] / facts["without_s"] < LITTLE:
        remedy = "Something else bounds the epoch, or the tier is no faster: see its bottleneck."
    elif scenario.epochs == 1 and not cluster.cache_tier.warm:
        remedy = (
            "Set more epochs, or cluster.cache_tier.warm: the first one only fills it."
        )
    else:
        remedy = "Set cluster.cache_tier.eviction: none, or a larger capacity."
    return [
        Problem(
            f"{path}.capacity", rule, f"{_percent(facts['held'])} of the data", remedy
        )
    ]
