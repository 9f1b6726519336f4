"""An allreduce alone: the law, the table of nccl-tests, what is asked for, the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.fabric.allreduce import AllreduceFlows
from simshuffle.studies.collective import (
    SIZES,
    bench_of_scenario,
    measure_bench,
    parse_sizes,
    read_bench,
)
from tests.calibrated import calibrate
from tests.examples import ring
from tests.small import PLAIN, small

MIB = 2.0**20
RING = (
    "ring:rings=1,intra_host_latency=3 us,inter_host_latency=8 us,"
    "intra_host_bus_bandwidth=20 GB/s,inter_host_bus_bandwidth=6 GB/s"
)


def printed(capsys, *words):
    assert main(["study", "collective", *words, "-q"]) == 0
    return capsys.readouterr().out


def test_a_ring_takes_its_latency_and_its_bytes_over_the_bus_bandwidth(capsys):
    """4 hosts of 4 GPUs of ABCI: 6 x 8 us + 24 x 3 us = 120 us, then 2 x 15/16 n / 6 GB/s."""
    words = ("abci", "--hosts", "4", "--algorithm", RING, "--sizes", "8 B,32 MiB", "--json")
    found = json.loads(printed(capsys, *words))
    assert (found["ranks"], found["hosts"], found["notes"]) == (16, 4, [])
    small_one, large_one = found["rows"]
    assert small_one["seconds"] == pytest.approx(120e-6 + 15 / 8 * 8 / 6e9, rel=1e-12)
    seconds = 120e-6 + 15 / 8 * 32 * MIB / 6e9
    assert large_one["seconds"] == pytest.approx(seconds, rel=1e-12)
    assert large_one["algorithm_bandwidth"] == pytest.approx(32 * MIB / seconds)
    assert large_one["bus_bandwidth"] == pytest.approx(15 / 8 * 32 * MIB / seconds)


class Steps:
    """Two flows of 1 MB, the second after the first and a delay of 1 ms, at 2 GB/s and 1 GB/s."""

    kind, order, one_for_each_hca, channels = "steps", "sorted", "channels", 1

    def flows(self, host_of, nbytes):
        one = np.array
        return AllreduceFlows(
            src=one([0, 1], np.int32),
            dst=one([1, 2], np.int32),
            nbytes=one([1e6, 1e6]),
            rail=np.zeros(2, np.int32),
            cap=one([2e9, 1e9]),
            latency=5e-6,
            delay=one([0.0, 1e-3]),
            step=one([0, 1], np.int32),
            edge_from=one([0], np.int32),
            edge_to=one([1], np.int32),
        )


def test_delays_edges_and_caps_count():
    """5 us, 1 MB at 2 GB/s, 1 ms, 1 MB at 1 GB/s."""
    asked = replace(bench_of_scenario(small()), allreduce=Steps())
    assert asked.seconds(1e6) == pytest.approx(5e-6 + 0.5e-3 + 1e-3 + 1e-3, rel=1e-12)
    assert asked.seconds(1e6) == asked.seconds(1e6)  # nothing stays on the network


def test_the_order_of_hosts_is_that_of_the_scenario():
    """On a tapered fat tree a ring in order crosses few of the links above the leaves."""
    tree = {"kind": "fat_tree", "levels": 2, "arity": 4, "taper": 4}
    scenario = small(cluster__topology=PLAIN["cluster.topology"] | tree, world_size=16)
    wide = {"inter_host_bus_bandwidth": "1 TB/s"}
    in_order = replace(bench_of_scenario(scenario), allreduce=ring(**wide))
    shuffled = replace(in_order, allreduce=ring(order="shuffled", **wide))
    assert shuffled.seconds(1e9) > 1.5 * in_order.seconds(1e9)


def test_the_table_is_read_back_as_what_it_is_of(tmp_path, capsys):
    """One table inside a host and one between hosts: latencies and bandwidths are those put in."""
    files = []
    for hosts in (1, 4):
        files.append(tmp_path / f"{hosts}.txt")
        words = ("--hosts", str(hosts), "--algorithm", RING)
        files[-1].write_text(printed(capsys, "abci", *words))
    found = calibrate(files).parameters
    values = {p.key.removeprefix("workload.allreduce."): p.value for p in found if p.usable}
    assert values == {
        "intra_host_latency": pytest.approx(3e-6, rel=2e-3),
        "inter_host_latency": pytest.approx(8e-6, rel=2e-3),
        "intra_host_bus_bandwidth": pytest.approx(20e9, rel=2e-3),
        "inter_host_bus_bandwidth": pytest.approx(6e9, rel=2e-3),
    }


def test_the_columns_are_those_of_nccl_tests(capsys):
    out = printed(capsys, "abci", "--hosts", "2", "--algorithm", RING, "--sizes", "1 MiB")
    lines = out.splitlines()
    assert sum(" device " in line for line in lines) == 8
    names = ["#", "size", "count", "type", "redop", "time", "algbw", "busbw"]
    assert [line.split() for line in lines if " redop" in line] == [["#", *names[1:]]]
    # 2 x 8 us + 12 x 3 us + 2 x 7/8 MiB / 6 GB/s = 357.8 us
    (row,) = [line.split() for line in lines if not line.startswith("#")]
    assert row == ["1048576", "262144", "float", "sum", "357.8", "2.93", "5.13"]
    assert lines[-1].startswith("# Avg bus bandwidth    : 5.12")


def test_without_sizes_it_measures_8_bytes_to_1_gib():
    assert (SIZES[0], SIZES[-1], len(SIZES)) == (8.0, 2.0**30, 28)
    assert parse_sizes("8 B, 1 MiB") == (8.0, MIB)


def test_a_scenario_brings_its_ranks_and_its_allreduce(capsys):
    found = json.loads(printed(capsys, "quickstart", "--sizes", "8 B", "--json"))
    assert (found["ranks"], found["hosts"]) == (64, 16)
    assert found["allreduce"]["inter_host_bus_bandwidth"] == "6.3 GB/s"
    fewer = ("--hosts", "3", "--gpus-per-host", "2", "--allreduce", "inter_host_latency=1 ms")
    found = json.loads(printed(capsys, "quickstart", "--sizes", "8 B", "--json", *fewer))
    assert (found["ranks"], found["hosts"]) == (6, 3)
    # 4 steps between hosts, 6 inside
    assert found["rows"][0]["seconds"] == pytest.approx(4e-3 + 6 * 3.4e-6, rel=1e-5)
    on_all = printed(capsys, "quickstart", "--sizes", "8 B", "--json", "--gpus-per-host", "2")
    assert [json.loads(on_all)[key] for key in ("ranks", "hosts")] == [32, 16]


def test_what_an_algorithm_leaves_out_is_of_the_table_and_the_links():
    """ABCI: two EDR of 12.5 GB/s, NVLink of 50 GB/s."""
    chosen = read_bench("abci", {}, "tree:inter_host_latency=7 us", hosts=2).allreduce
    assert (chosen.channels, chosen.intra_host_latency, chosen.inter_host_latency) == (
        2,
        pytest.approx(28e-6),
        pytest.approx(7e-6),
    )
    assert chosen.intra_host_bus_bandwidth(1.0) == 50e9
    assert chosen.inter_host_bus_bandwidth(1.0) == 25e9
    assert read_bench("abci", {}, "ring", hosts=2).allreduce.intra_host_latency == 3.4e-6
    assert read_bench("abci", {}, hosts=2).allreduce.kind == "nccl"


def test_sizes_beyond_a_measured_curve_are_noted(capsys):
    curve = "{points: {1 MB: 2 GB/s, 100 MB: 8 GB/s}}"
    words = ["study", "collective", "abci", "--hosts", "2", "--algorithm", "ring", "--sizes"]
    words += ["1 kB,10 MB,1 GB", "--allreduce", f"inter_host_bus_bandwidth={curve}"]
    assert main(words) == 0
    told = capsys.readouterr().err
    assert "inter_host_bus_bandwidth was measured from 1 MB to 100 MB. For 1 kB, 1 GB" in told
    assert main([*words, "--hosts", "1"]) == 0  # where it is not used
    assert "was measured" not in capsys.readouterr().err


def test_exports_have_the_same_numbers(capsys):
    words = ("abci", "--hosts", "2", "--algorithm", RING, "--sizes", "1 MiB")
    latex = printed(capsys, *words, "--to", "latex")
    assert "1048576 & 262144 & float & sum & 357.8 & 2.93 & 5.13" in latex
    assert "357.8 | 2.93 | 5.13 |" in printed(capsys, *words, "--to", "markdown")


def test_an_alltoall_is_printed_as_osu_does_and_read_back(tmp_path, capsys):
    """128 ranks of ABCI: L + 127 x (0.5 us + 8 B / 4.1 GB/s) all at once."""
    from simshuffle import calibrate

    words = ("abci", "--hosts", "32", "--kind", "alltoall", "--algorithm", "linear,pairwise")
    text = printed(capsys, *words, "--sizes", "8 B,1 KiB")
    file = tmp_path / "pairs.txt"
    file.write_text(text)
    rows = calibrate([file], ranks=128).table("measurements")
    assert rows["operation"].tolist() == ["all_to_all"] * 4
    found = json.loads(printed(capsys, *words, "--sizes", "8 B", "--json"))
    linear, pairwise = (row["seconds"] for row in found["rows"])
    assert linear - 127 * (0.5e-6 + 8 / 4.1e9) == pytest.approx(1.7e-6, abs=0.3e-6)
    assert rows["seconds"].iloc[0] == pytest.approx(linear, rel=1e-3)
    assert pairwise > 3 * linear


def test_files_of_both_kinds_are_told_apart(tmp_path, capsys):
    from simshuffle.spec.library import shipped_folder

    machine = shipped_folder("topologies") / "abci.yaml"
    scenario = shipped_folder("scenarios") / "quickstart.yaml"
    for file, kind in ((machine, "nccl"), (scenario, "ring")):
        copy = tmp_path / file.name
        copy.write_text(file.read_text())
        words = (str(copy), "--hosts", "2", "--sizes", "8 B", "--json")
        assert json.loads(printed(capsys, *words))["allreduce"]["kind"] == kind


def test_other_models_of_the_network_are_used():
    """Analytic: a flow is alone on its links."""
    asked = read_bench("abci", {"network.kind": "analytic"}, RING, hosts=4)
    assert asked.network.kind == "analytic"
    rows = measure_bench(asked, [32 * MIB]).rows
    assert rows[0]["seconds"] <= read_bench("abci", {}, RING, hosts=4).seconds(32 * MIB)


def test_no_progress_and_no_note_in_the_way_of_the_table(capsys):
    with pytest.raises(InputError):
        parse_sizes("")
    assert printed(capsys, "abci", "--hosts", "2", "--sizes", "8 B").startswith("# simshuffle")
