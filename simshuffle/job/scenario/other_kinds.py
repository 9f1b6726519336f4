"""Changes that follow in a scenario where a record gets another kind: the values that
an allreduce needs and nobody gives, the records of measured values, and the axes of
sweeps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from simshuffle.fabric.allreduce import Allreduce
from simshuffle.job.scenario.calibrated import OF_RINGS, PLATEAU, forget
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.switching import (
    KindSwitch,
    PendingSwitches,
    meaning_of_key,
    records_by_kind,
)
from simshuffle.spec.validation import validate_record

ALLREDUCE = "workload.allreduce"
LATENCIES = {
    "ring_intra_host_latency": "3.4 us",
    "ring_inter_host_latency": "9.6 us",
    "tree_intra_host_latency": "28 us",
    "tree_inter_host_latency": "50 us",
    "nvls_intra_host_latency": "25 us",
    "nvls_inter_host_latency": "20.9 us",
}
"""s of a step inside a host and between hosts: NCCL 2.7.8, src/graph/tuning.cc, NVLink
and network, Simple protocol (docs/model-allreduce.md); of nvls NCCL 2.28.
"""
TAKEN = (
    "taken when the kind was set: what the links carry",
    "taken when the kind was set: NCCL v2.7.8 tuning table, NVLink and network, Simple protocol",
)
"""Sources of a bandwidth and a latency that `complete_allreduce` gave."""


def complete_allreduce(
    allreduce: Mapping[str, Any], cluster: Cluster
) -> dict[str, Any]:
    """Return a copy of an allreduce (plain values) with the required latencies and bus
    bandwidths that it leaves out, as text with units.

    Latencies are of NCCL's table. Inside a host the bandwidth is that of a GPU's
    NVLink. Between hosts it is the smaller of what the cables of all HCAs and what all
    PCIe slots of a host carry, times the hosts of a scale-up domain. An unknown kind
    gets nothing.
    """
    record = records_by_kind(Allreduce).get(allreduce.get("kind", ""))
    if record is None:
        return dict(allreduce)
    host = cluster.host
    cables = host.hcas * float(
        getattr(cluster.topology, "link_bandwidth", host.pcie_bandwidth)
    )
    inter_host_bandwidth = cluster.hosts_per_domain * min(
        cables, host.pcie_slots * host.pcie_bandwidth
    )
    defaults = {
        "intra_host_bus_bandwidth": f"{host.nvlink_bandwidth!r} B/s",
        "inter_host_bus_bandwidth": f"{inter_host_bandwidth!r} B/s",
        **LATENCIES,
    }
    needed = (key for key, field in record.model_fields.items() if field.is_required())
    meant = {key: meaning_of_key(record, key) for key in needed}
    return {
        key: defaults[default_key]
        for key, default_key in meant.items()
        if default_key in defaults
    } | dict(allreduce)


def fill(allreduce: dict[str, Any], cluster: Cluster, switch: KindSwitch) -> None:
    """Give an allreduce, in place, what `complete_allreduce` knows, and note it in
    ``switch.filled``.

    Where the key ``source`` of the allreduce is a mapping, it gets the source of each
    added key, too.
    """
    values = complete_allreduce(allreduce, cluster)
    added = {key: values[key] for key in values if key not in allreduce}
    switch.filled |= added
    if isinstance(source := values.get("source"), dict):
        values["source"] = source | {
            key: TAKEN[key.endswith("latency")] for key in added
        }
    allreduce |= values


def complete(document: dict[str, Any], switches: Sequence[KindSwitch]) -> None:
    """Give the allreduce of a scenario (plain values) the values that its new kind
    needs and nobody gave (`complete_allreduce`).

    Changes ``document`` and the last switch of the allreduce in place. Nothing happens
    without such a switch, or if the cluster is still a name or not valid.
    """
    switched = [switch for switch in switches if switch.key == ALLREDUCE]
    if not switched or not isinstance(document.get("cluster"), dict):
        return
    cluster, problems = validate_record(document["cluster"], Cluster)
    if cluster is not None and not problems:  # which are reported elsewhere
        fill(document["workload"]["allreduce"], cluster, switched[-1])


def settle_kinds(
    document: dict[str, Any], leftovers: PendingSwitches, values: Mapping[str, Any]
) -> list[KindSwitch]:
    """Replace the keys of a record whose kind ``values`` set, by dotted key, with those
    of the new kind. Return the switches that were made, one for each such record.

    Changes ``document`` in place: records of measured values and the axes of the sweep
    get the new keys, too, or are dropped if the new kind has none.
    """
    switches = leftovers.settle(document, values)
    for switch in switches:
        _follow(document, switch, values)
    return switches


def _follow(
    document: dict[str, Any], switch: KindSwitch, keys: Collection[str]
) -> None:
    """Give the records of measured values, and the axes of the sweep, the keys that
    they have after ``switch``, or drop them; in place.

    ``keys`` are the dotted keys that were set: a sweep among them stays. The plateau
    becomes 1, which is noted in ``switch.filled``, where a measured latency gets the
    key of a ring's latency, unless the plateau is among ``keys``.
    """
    records = document.get("calibrated")
    sweep = document.get("sweep")
    for name, now in switch.new_names.items():
        old_key = f"{switch.key}.{name}"
        new_key = f"{switch.key}.{now}"
        if now is None:
            forget(document, old_key)
        elif now != name:
            for record in records if isinstance(records, list) else ():
                if not isinstance(record, dict) or record.get("key") != old_key:
                    continue
                record["key"] = new_key
                if new_key in OF_RINGS.values() and PLATEAU not in keys:
                    # large buffers were measured too, so nothing is left to correct
                    document["workload"]["allreduce"]["plateau"] = switch.filled[
                        "plateau"
                    ] = 1
    if isinstance(sweep, dict) and "sweep" not in keys:
        document["sweep"] = _swept(sweep, switch)


def _swept(sweep: dict[Any, Any], switch: KindSwitch) -> dict[Any, Any]:
    """Return the axes of a sweep after ``switch``; those whose key is gone are noted in
    ``switch.dropped``.
    """
    axes = {}
    for axis, values in sweep.items():
        name, dot, lower_keys = str(axis).removeprefix(f"{switch.key}.").partition(".")
        now = (
            switch.new_names.get(name, name)
            if str(axis).startswith(f"{switch.key}.")
            else name
        )
        if now is None:
            switch.dropped.setdefault(name, values)
        else:
            axes[axis if now == name else f"{switch.key}.{now}{dot}{lower_keys}"] = (
                values
            )
    return axes
