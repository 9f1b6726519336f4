"""An allreduce at the pace of the slowest of unequal hosts, worked out by hand.

The smallest of H independent numbers is above x with probability (1 - F(x))^H (David & Nagaraja,
Order Statistics, 2003, section 2.1). Of log-normal numbers of mean 1 and standard deviation s the
median is 1 / sqrt(1 + s^2): 0.8 for s = 0.75. F there is 1/2, so the slowest of H hosts has it as
its quantile 1 - 2^-H.
"""

from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.allreduce import Nccl, Ring, Torus, Tree
from simshuffle.fabric.allreduce.base import SlowHosts
from simshuffle.fabric.allreduce.nccl import Choice
from simshuffle.job.lowering.collectives import Half
from tests.allreduces import flows_of, hosts

BUS = 10e9
NO_LATENCY = {"intra_host_latency": "0 s", "inter_host_latency": "0 s"}
BANDWIDTHS = {"intra_host_bus_bandwidth": "100 GB/s", "inter_host_bus_bandwidth": "10 GB/s"}


def slow(count: int, spread: float = 0.75) -> dict[str, Any]:
    """Slow hosts of which the slowest of ``count`` has the median of all."""
    return {"spread": spread, "quantile": 1 - 2.0**-count}


def seconds(algorithm: Any, count: int, gpus: int = 2) -> float:
    flows = flows_of(algorithm, hosts(count * gpus, gpus), 1e9)
    return float(flows.seconds_uncontended)


def made(kind: type, name: str, slow_hosts: Any = None) -> Any:
    each = {Ring: "rings", Tree: "channels", Torus: "rails"}[kind]
    plain = {"kind": name, each: 1, **NO_LATENCY, **BANDWIDTHS, "slow_hosts": slow_hosts}
    return kind.model_validate(plain)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_the_slowest_has_the_median_of_all_where_only_one_in_2_to_the_h_is_faster(count):
    assert SlowHosts(**slow(count)).share(count) == pytest.approx(0.8, rel=1e-9)


@pytest.mark.parametrize(("count", "quantile"), [(4, 0.05), (4, 0.5), (16, 0.5), (16, 0.95)])
def test_quantiles_are_those_of_drawn_hosts(count, quantile):
    variance = np.log1p(0.7**2)
    normal = np.random.default_rng(1).standard_normal((100_000, count))
    drawn = np.exp(np.sqrt(variance) * normal - variance / 2).min(axis=1)
    share = SlowHosts(spread=0.7, quantile=quantile).share(count)
    assert share == pytest.approx(np.quantile(drawn, quantile), rel=0.01)  # 1 % is 3 sigma


def test_no_host_exceeds_the_bus_bandwidth():
    assert SlowHosts(spread=2.0, quantile=0.999).share(1) == 1.0
    assert SlowHosts(spread=0.0).share(1000) == 1.0


@pytest.mark.parametrize(("kind", "name"), [(Ring, "ring"), (Tree, "tree")])
def test_an_allreduce_goes_at_the_pace_of_the_slowest(kind, name):
    # 8 ranks on 4 hosts: 2 * 7/8 * 1 GB at 0.8 of 10 GB/s
    expected = 2 * 7 / 8 * 1e9 / (0.8 * BUS)
    assert seconds(made(kind, name, slow(4)), 4) == pytest.approx(expected, rel=1e-9)


def test_two_hosts_lose_nothing_by_trees_until_the_slowest_has_less_than_half():
    without = 2 * 3 / 4 * 1e9 / BUS
    assert seconds(made(Tree, "tree", slow(2)), 2) == pytest.approx(without, rel=1e-9)
    # median share of s^2 = 15 is 1 / sqrt(16): a quarter, which trees over two hosts use twice
    quarter = slow(2, 15**0.5)
    assert seconds(made(Tree, "tree", quarter), 2) == pytest.approx(without * 2, rel=1e-9)
    assert seconds(made(Ring, "ring", quarter), 2) == pytest.approx(without * 4, rel=1e-9)


def test_what_stays_inside_hosts_is_not_slowed():
    slowed, plain = (made(Torus, "torus", each) for each in (slow(4), None))
    on = hosts(8, 2)
    flows, before = slowed.flows(on, 1e9), plain.flows(on, 1e9)
    far = on[flows.src] != on[flows.dst]
    assert far.any() and (~far).any()
    assert flows.cap[far] == pytest.approx(0.8 * before.cap[far])
    assert (flows.cap[~far] == before.cap[~far]).all()
    one_host = made(Ring, "ring", slow(1)).flows(hosts(4, 4), 1e9)
    assert (one_host.cap == made(Ring, "ring").flows(hosts(4, 4), 1e9).cap).all()


def test_nccl_slows_once_whatever_it_chooses():
    latencies = {
        f"{each}_{side}_host_latency": "0 s"
        for each in ("ring", "tree")
        for side in ("intra", "inter")
    }
    plain = {"kind": "nccl", "channels": 1, **latencies, **BANDWIDTHS}
    slowed = Nccl.model_validate({**plain, "slow_hosts": slow(4)})
    ratio = seconds(slowed, 4) / seconds(Nccl.model_validate(plain), 4)
    assert ratio == pytest.approx(1 / 0.8, rel=1e-9)


def test_reduce_scatter_is_slowed_as_the_allreduce_is():
    whole = Choice(made(Ring, "ring", slow(4)))
    flows = flows_of(Half(whole), hosts(8, 2), 1e9)
    assert flows.seconds_uncontended == pytest.approx(7 / 8 * 1e9 / (0.8 * BUS), rel=1e-9)


@pytest.mark.parametrize("change", [{"spread": -1.0}, {"quantile": 0.0}, {"quantile": 1.0}])
def test_spreads_and_quantiles_outside_their_range_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        SlowHosts.model_validate({"spread": 0.5, **change})


def test_a_scenario_without_slow_hosts_says_nothing_of_them():
    plain = made(Ring, "ring")
    assert "slow_hosts" not in plain.model_dump(exclude_none=True)
    none_slower = made(Ring, "ring", {"spread": 0.0})
    assert seconds(plain, 4) == seconds(none_slower, 4)
