"""What else changes in a scenario where a record gets another kind: what an allreduce needs and
nobody gives, the records of measured values, and what is swept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from simshuffle.fabric.allreduce import Allreduce
from simshuffle.job.scenario.calibrated import OF_RINGS, PLATEAU, forget
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.switching import KindSwitch, PendingSwitches, meaning_of_key, records_by_kind
from simshuffle.spec.validation import validate_record

ALLREDUCE = "workload.allreduce"
LATENCIES = {
    "ring_intra_host_latency": "3.4 us",
    "ring_inter_host_latency": "9.6 us",
    "tree_intra_host_latency": "28 us",
    "tree_inter_host_latency": "50 us",
}
"""s of a step inside a host and between hosts: NCCL 2.7.8, src/graph/tuning.cc, NVLink and network,
Simple protocol (docs/model-allreduce.md)."""
TAKEN = (
    "taken when the kind was set: what the links carry",
    "taken when the kind was set: NCCL v2.7.8 tuning table, NVLink and network, Simple protocol",
)
"""Sources of a bandwidth and a latency that `completed` gave."""


def completed(plain: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """An allreduce (plain values) with those of its required keys that it leaves out: latencies of
    NCCL's table, and as bus bandwidths what the NVLink of a GPU, and all HCAs and PCIe slots of a
    host, or of a scale-up domain, carry."""
    record = records_by_kind(Allreduce).get(plain.get("kind", ""))
    if record is None:
        return dict(plain)
    host = cluster.host
    cables = host.hcas * float(getattr(cluster.topology, "link_bandwidth", host.pcie_bandwidth))
    between = cluster.hosts_per_domain * min(cables, host.pcie_slots * host.pcie_bandwidth)
    known = {
        "intra_host_bus_bandwidth": f"{host.nvlink_bandwidth!r} B/s",
        "inter_host_bus_bandwidth": f"{between!r} B/s",
        **LATENCIES,
    }
    needed = (key for key, of in record.model_fields.items() if of.is_required())
    meant = {key: meaning_of_key(record, key) for key in needed}
    return {key: known[of] for key, of in meant.items() if of in known} | dict(plain)


def fill(allreduce: dict[str, Any], cluster: Cluster, switch: KindSwitch) -> None:
    """Give an allreduce what `completed` knows, and note it in ``switch``."""
    found = completed(allreduce, cluster)
    added = {key: found[key] for key in found if key not in allreduce}
    switch.filled |= added
    if isinstance(source := found.get("source"), dict):
        found["source"] = source | {key: TAKEN[key.endswith("latency")] for key in added}
    allreduce |= found


def complete(plain: dict[str, Any], switches: Sequence[KindSwitch]) -> None:
    """Give an allreduce that got another kind, in the plain values of a scenario whose cluster is
    no name any more, what else it needs: see `completed`."""
    switched = [each for each in switches if each.key == ALLREDUCE]
    if not switched or not isinstance(plain.get("cluster"), dict):
        return
    cluster, problems = validate_record(plain["cluster"], Cluster)
    if cluster is not None and not problems:  # which are reported elsewhere
        fill(plain["workload"]["allreduce"], cluster, switched[-1])


def settled(
    plain: dict[str, Any], left: PendingSwitches, own: Mapping[str, Any]
) -> list[KindSwitch]:
    """Let a scenario's plain values have the keys of the kinds that were set with the values
    ``own``, by dotted key. Returns what became of each record."""
    switches = left.settle(plain, own)
    for switch in switches:
        _follow(plain, switch, own)
    return switches


def _follow(plain: dict[str, Any], switch: KindSwitch, own: Collection[str]) -> None:
    """Give the records of measured values, and what is swept, the keys that they have after
    ``switch``, or drop them. ``own`` are the dotted keys that were set."""
    records, sweep = plain.get("calibrated"), plain.get("sweep")
    for name, now in switch.new_names.items():
        before, after = f"{switch.key}.{name}", f"{switch.key}.{now}"
        if now is None:
            forget(plain, before)
        elif now != name:
            for record in records if isinstance(records, list) else ():
                if not isinstance(record, dict) or record.get("key") != before:
                    continue
                record["key"] = after
                if after in OF_RINGS.values() and PLATEAU not in own:
                    # large buffers were measured too, so nothing is left to correct
                    plain["workload"]["allreduce"]["plateau"] = switch.filled["plateau"] = 1
    if isinstance(sweep, dict) and "sweep" not in own:
        plain["sweep"] = _swept(sweep, switch)


def _swept(sweep: dict[Any, Any], switch: KindSwitch) -> dict[Any, Any]:
    """The axes of a sweep after ``switch``."""
    out = {}
    for axis, values in sweep.items():
        name, dot, rest = str(axis).removeprefix(f"{switch.key}.").partition(".")
        now = switch.new_names.get(name, name) if str(axis).startswith(f"{switch.key}.") else name
        if now is None:
            switch.dropped.setdefault(name, values)
        else:
            out[axis if now == name else f"{switch.key}.{now}{dot}{rest}"] = values
    return out
