"""Relations between runs that must hold whatever the scenario: on random small ones, half of them
extreme.

Where a relation holds only nearly, the tolerance is stated, and docs/model-bounds.md, "Anomalies",
says why. Its smallest cases are in test_anomalies.py.
"""

import copy
import hashlib
import os
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.report.timeline import EXCLUSIVE, Timeline
from tests.scenarios import random_values, with_values

Values = dict[str, Any]

SCENARIOS = [(number, extreme) for extreme in (False, True) for number in range(16)]
ROUNDING = 1e-9
"""Relative difference that comes from adding times up in another order."""
every = pytest.mark.parametrize(
    ("number", "extreme"),
    SCENARIOS,
    ids=[f"{'extreme' if e else 'usual'}{n}" for n, e in SCENARIOS],
)


@cache
def scenario(number: int, extreme: bool) -> Scenario:
    return with_values(random_values(number, extreme))


@cache
def timeline(number: int, extreme: bool) -> Timeline:
    return simulate(scenario(number, extreme))


def duration(timeline: Timeline) -> float:
    """s of all epochs together."""
    return float(timeline.phases["end_s"].max())


def durations(timeline: Timeline) -> Any:
    """s of each epoch."""
    ends = timeline.phases.groupby("epoch", observed=True)["end_s"].max().to_numpy()
    return np.diff(ends, prepend=0.0)


# --------------------------------------------------------------------------------- the generator


def digest() -> str:
    values = [random_values(number, extreme) for number, extreme in SCENARIOS]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def test_a_number_is_the_same_scenario_in_every_process():
    command = "from tests.properties.test_relations import digest; print(digest())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", command],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == digest()


def test_the_scenarios_are_of_many_kinds():
    drawn = [scenario(number, extreme) for number, extreme in SCENARIOS]
    assert len({s.workload.exchange.kind for s in drawn}) == 5
    assert len({s.network.kind for s in drawn}) == 3
    assert len({s.workload.allreduce.kind for s in drawn}) == 9
    assert {s.workload.allreduce.overlap.kind for s in drawn} == {"none", "ddp", "horovod"}
    assert {s.workload.model.layers is None for s in drawn} == {True, False}
    assert any(s.cluster.parallel_file_system.latency_spread for s in drawn)
    assert {s.workload.source for s in drawn} == {"pfs", "ssd", "memory"}
    assert {s.workload.last_batch for s in drawn} == {"nearest", "keep", "drop", "carry"}
    assert {3, 16} <= {s.world_size for s in drawn}


# -------------------------------------------------------------------------------------- one run


@every
def test_the_phases_of_every_rank_fill_the_epochs(number, extreme):
    phases = timeline(number, extreme).phases
    end = duration(timeline(number, extreme))
    for _, rows in phases[phases["phase"].isin(EXCLUSIVE)].groupby("rank"):
        order = rows.sort_values(["start_s", "end_s"])
        assert order["start_s"].to_numpy()[1:] == pytest.approx(order["end_s"].to_numpy()[:-1])
        assert order["start_s"].iloc[0] == 0.0
        assert order["end_s"].iloc[-1] == end
        assert (rows["end_s"] - rows["start_s"]).sum() == pytest.approx(end)


@every
def test_every_byte_is_counted_once(number, extreme):
    """What the plan says is what the tables say, and what the links carried."""
    this, tables = scenario(number, extreme), timeline(number, extreme)
    nbytes = sample_nbytes(this)
    for plan in plan_epochs(this, nbytes):
        row = tables.sources[tables.sources["epoch"] == plan.epoch].iloc[0]
        passes = [plan.training] + ([] if plan.inference is None else [plan.inference])
        read = sum(reads.nbytes.sum() for reads in passes)
        exchanged = float(nbytes[plan.exchange.sample][plan.exchange.moving].sum())
        stored = row["nbytes_pfs"] + row["nbytes_ssd"] + row["nbytes_memory"]
        assert stored == pytest.approx(read + exchanged)
        in_memory = this.workload.source == "memory"
        each = this.workload.dataset.samples_per_request
        requests = sum(np.ceil((of.samples - of.hit_samples) / each).sum() for of in passes)
        requests += (plan.exchange.moving & ~plan.sent_from_cache).sum()
        assert row["read_requests"] + row["read_requests_ssd"] == (0 if in_memory else requests)
        assert row["nbytes_ssd_written"] == pytest.approx(0.0 if in_memory else exchanged)
        assert row["samples"] == plan.training.samples.sum()
        assert row["samples_moved"] == plan.exchange.moving.sum()
        links = tables.links[tables.links["epoch"] == plan.epoch]
        carried = links.groupby(links["tier"].astype(str))["nbytes"].sum()
        if not this.workload.loader.across_epochs:
            samples = sum(reads.samples.sum() for reads in passes)
            copied = samples * this.workload.model.input_size
            # gradients between hosts come in through the same slots
            assert carried["pcie_in"] >= copied * (1 - ROUNDING)
            assert carried.get("pfs.bandwidth", 0.0) == pytest.approx(row["nbytes_pfs"])
            assert carried.get("ssd", 0.0) == pytest.approx(
                row["nbytes_ssd"] + row["nbytes_ssd_written"]
            )
    # a loader that reads ahead carries bytes of the next epoch in this one
    on_ssd = tables.links.loc[tables.links["tier"] == "ssd", "nbytes"].sum()
    columns = ["nbytes_ssd", "nbytes_ssd_written"]
    assert on_ssd == pytest.approx(tables.sources[columns].to_numpy().sum())


@every
def test_no_link_is_used_by_more_than_it_has(number, extreme):
    tables = timeline(number, extreme)
    lengths = durations(tables)[tables.links["epoch"].to_numpy() - 1]
    links = tables.links
    if scenario(number, extreme).network.kind == "analytic":  # whose cables are not shared
        links = links[~links["tier"].str.contains(">")]
        lengths = durations(tables)[links["epoch"].to_numpy() - 1]
    assert (links["mean_utilisation"] <= 1 + ROUNDING).all()
    assert (links["peak_utilisation"] <= 1 + ROUNDING).all()
    assert (links["busy_s"] <= lengths * (1 + ROUNDING)).all()


@every
def test_a_run_can_be_repeated(number, extreme):
    first, second = timeline(number, extreme), simulate(scenario(number, extreme))
    for name in ("phases", "links", "sources"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name))


# ------------------------------------------------------------------------------------- two runs


@every
def test_an_epoch_alone_is_that_of_the_run(number, extreme):
    this, whole = scenario(number, extreme), timeline(number, extreme)
    if this.workload.allreduce.overlap.kind == "horovod":  # its cycles begin with the run
        pytest.skip("an epoch meets the cycles of Horovod where it happens to")
    if this.workload.loader.across_epochs:
        this = this.with_values({"workload.loader.across_epochs": False})
        whole = simulate(this)
    alone = simulate(this, first_epoch=this.epochs)
    spent = []
    for table in (whole, alone):
        rows = table.phases[table.phases["epoch"] == this.epochs]
        keys = [rows[name] for name in ("rank", "iteration", "phase")]
        spent.append((rows["end_s"] - rows["start_s"]).groupby(keys, observed=True).sum())
    before, now = spent[0].align(spent[1], fill_value=0.0)
    # the clock of the whole run is the coarser one
    assert now.to_numpy() == pytest.approx(before.to_numpy(), abs=ROUNDING * duration(whole))


INSTANT = "1e30 B/s"


def with_instant_storage(values: Values) -> Values:
    """Everything that bytes are read through, and the network, without any time of its own."""
    out = copy.deepcopy(values)
    out["cluster.topology"] |= {"cable_latency": "0 s", "switch_latency": "0 s"}
    out["cluster.topology"] |= {"link_bandwidth": INSTANT}
    for key in ("host.pcie_bandwidth", "host.nvlink_bandwidth"):
        out[f"cluster.{key}"] = INSTANT
    out["cluster.memory"]["bandwidth"] = INSTANT
    ssd = {"read_bandwidth": INSTANT, "write_bandwidth": INSTANT, "latency": "0 s"}
    out["cluster.ssd"] = {"source": "drawn", "capacity": "1e18 B", **ssd}
    pfs = {"read_bandwidth": INSTANT, "link_bandwidth": INSTANT, "open_rate": "1e30 1/s"}
    pfs |= {"source": "drawn", "latency": "0 s", "link_latency": "0 s"}
    out["cluster.parallel_file_system"] = {**pfs, "links_per_switch": 1}
    return out


@every
def test_where_a_copy_lies_does_not_matter_if_storage_takes_no_time(number, extreme):
    values = with_instant_storage(random_values(number, extreme))
    found = {}
    for source in ("ssd", "pfs"):
        values["workload.exchange"] = {"kind": "global_shuffle", "source": source}
        found[source] = durations(simulate(with_values(values)))
    # a packet takes a tick of 57 fs on every cable, however fast
    tolerance = 1e-7 if values["network"]["kind"] == "packet" else ROUNDING
    assert found["ssd"] == pytest.approx(found["pfs"], rel=tolerance)


def scaled(values: Any, factors: dict[str, float]) -> Any:
    """The values with every quantity of a unit times the factor of that unit."""
    if isinstance(values, dict):
        return {key: scaled(value, factors) for key, value in values.items()}
    number, _, unit = str(values).partition(" ")
    if not isinstance(values, str) or unit not in factors:
        return values
    return f"{float(number) * factors[unit]!r} {unit}"


def with_known_costs(values: Values) -> Values:
    """Nothing is taken from what was measured on a certain machine."""
    out = copy.deepcopy(values)
    if "schedule" in out["workload.exchange"]:
        out["workload.exchange"]["schedule"].setdefault("pickle", "0.0001 s")
    return out


@every
def test_a_machine_of_half_the_speed_takes_twice_the_time(number, extreme):
    values = with_known_costs(random_values(number, extreme))
    slow = scaled(values, {"s": 2.0, "B/s": 0.5, "1/s": 0.5})
    before, after = (durations(simulate(with_values(v))) for v in (values, slow))
    # packets: which of two comes first can depend on a tick
    tolerance = 0.02 if values["network"]["kind"] == "packet" else ROUNDING
    assert after == pytest.approx(2 * before, rel=tolerance)


@every
def test_twice_the_bytes_at_twice_the_speed_take_the_same_time(number, extreme):
    values = with_known_costs(random_values(number, extreme))
    if values["workload.exchange"].get("schedule", {}).get("partner_rule") == "importance_sorted":
        # an importance has 8 B on every machine
        values["workload.exchange"]["schedule"]["partner_rule"] = "random_pairs"
    large = scaled(values, {"B": 2.0, "B/s": 2.0})
    before, after = (durations(simulate(with_values(v))) for v in (values, large))
    assert after == pytest.approx(before, rel=ROUNDING)


PACKETS = 0.1
"""How much longer a run may take for no reason but packets that get in the way of others."""


def with_even_exchange(values: Values, fraction: float) -> Values:
    """Every rank sends this share of every batch, and all samples are alike: nothing is left over
    for the last iteration, nobody keeps what he should send, and no luck decides who has what."""
    out = copy.deepcopy(values)
    ranks, batch = 2 * max(out["world_size"] // 2, 1), 2 * out["workload.local_batch_size"]
    iterations = max(out["workload.dataset"]["num_samples"] // (ranks * batch), 1)
    out |= {"world_size": ranks, "workload.local_batch_size": batch}
    out["workload.jitter"] = {"compute": 0, "read": 0}
    out["workload.dataset"]["num_samples"] = ranks * batch * iterations
    out["workload.dataset"]["sample_size"]["std"] = "0 B"
    out["workload.exchange"]["exchange_fraction"] = fraction
    out["workload.exchange"]["schedule"] |= {"partner_rule": "random_pairs", "partner_scope": "all"}
    return out


@every
def test_more_exchange_takes_no_less_time(number, extreme):
    values = random_values(number, extreme)
    if "schedule" not in values["workload.exchange"]:
        values["workload.exchange"] = {"kind": "partial_local_shuffle", "schedule": {}}
        values["workload.loader"]["across_epochs"] = False
    found = [
        duration(simulate(with_values(with_even_exchange(values, fraction))))
        for fraction in (0.0, 0.5, 1.0)
    ]
    assert found[0] <= found[1] * (1 + ROUNDING)
    assert found[1] <= found[2] * (1 + ROUNDING)


PFS = "cluster.parallel_file_system"
MACHINE = "workload.model.accelerators.v100-sxm2-16gb"
ALLREDUCE_LATENCIES = [
    f"workload.allreduce/{of}{where}_host_latency"
    for of in ("", "ring_", "tree_")
    for where in ("intra", "inter")
]
# what is changed, by how much, and how much longer the run may then take: for most nothing
CHANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        [
            *("cluster.topology/link_bandwidth", "cluster.message_passing/stream_bandwidth"),
            *(f"cluster.host.{link}_bandwidth" for link in ("pcie", "nvlink")),
            *(f"cluster.ssd/{key}" for key in ("read_bandwidth", "write_bandwidth", "iops")),
            *(f"cluster.memory/{key}" for key in ("bandwidth", "page_cache")),
            *(f"{PFS}/{key}_bandwidth" for key in ("read", "link", "client")),
            f"{PFS}/open_rate",
            *(f"workload.allreduce/{where}_host_bus_bandwidth" for where in ("intra", "inter")),
        ],
        (2.0, ROUNDING),
    ),
    **dict.fromkeys(
        [
            *("cluster.ssd/latency", "cluster.message_passing/latency"),
            *(f"{PFS}/{key}" for key in ("latency", "link_latency", "background_load")),
            *(f"cluster.topology/{of}_latency" for of in ("cable", "switch")),
            *ALLREDUCE_LATENCIES,
            *(f"workload.dataset/{cost}" for cost in ("decode", "encode")),
            *(f"workload.dataset/{of}_size" for of in ("sample", "decoded")),
            *(f"{MACHINE}/{part}" for part in ("forward", "backward", "update")),
            *(f"workload.model.{of}_size" for of in ("gradient", "input")),
            *(
                f"workload.exchange/schedule/{cost}"
                for cost in ("read", "zero_buffer", "remove", "draw", "decode", "pickle", "write")
            ),
        ],
        (0.5, ROUNDING),
    ),
    # see docs/model-bounds.md, "Anomalies"
    "cluster.host.cores": (2, 0.1),
    "workload.loader/threads": (2, 0.1),
    "workload.loader/prefetch": (2, 1 / 3),
    "workload.loader/workers": (2, 1 / 3),
}


def sensible(values: Values, path: str) -> Values:
    """The values, with which the change at ``path`` is one to the better."""
    out = copy.deepcopy(values)
    if path.endswith("page_cache"):  # what is read from memory must not be slower than from storage
        out["cluster.memory"]["bandwidth"] = INSTANT
    return out


def changed(values: Values, path: str, factor: float) -> Values | None:
    """The values with one of them, or all quantities below it, times a factor; None if it is not
    among them."""
    out = copy.deepcopy(values)
    *parents, last = path.split("/")
    at = out
    for part in parents:
        at = at.get(part, {})
    if last not in at:
        return None
    if isinstance(at[last], (str, dict)):
        at[last] = scaled(at[last], dict.fromkeys(("B", "B/s", "1/s", "s"), factor))
    else:
        at[last] = type(at[last])(at[last] * factor)
    return out


@pytest.mark.parametrize("path", CHANGES)
def test_a_better_machine_or_less_to_do_takes_no_longer(path):
    factor, tolerance = CHANGES[path]
    start = list(CHANGES).index(path)
    tried = 0
    for number, extreme in SCENARIOS[start % 5 :: 5]:
        values = sensible(random_values(number, extreme), path)
        better = changed(values, path, factor)
        if better is None:
            continue
        tried += 1
        packets = values["network"]["kind"] == "packet"
        allowed = max(tolerance, PACKETS) if packets else tolerance
        unchanged = values == random_values(number, extreme)
        before = timeline(number, extreme) if unchanged else simulate(with_values(values))
        after = simulate(with_values(better))
        assert duration(after) <= duration(before) * (1 + allowed), (number, extreme)
    assert tried or "schedule" in path or "allreduce" in path
