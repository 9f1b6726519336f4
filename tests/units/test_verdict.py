"""The verdict of ``simshuffle check``: its tables, its rows as JSON, its warnings, and the estimate
of the simulation."""

import json
import re

import pytest
import yaml

from simshuffle.cli import main
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.effort import SHARED_NBYTES, START, effort
from simshuffle.job.plan.findings import USUAL, UsualRange, warnings
from simshuffle.job.plan.jobs import place_jobs
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.job.sim.jobs_cell import JobsCell
from simshuffle.job.verdict import tables, verdict
from simshuffle.report.console import terminal_text
from simshuffle.spec.library import CATALOG, shipped_folder, shipped_names
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from tests.small import small

RUNS = ["global-pfs @64", "local @64", "partial-0.1 streamlined @64"]


def checked(capsys, *arguments):
    assert main(["check", *arguments]) == 0
    return capsys.readouterr().out


# ------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize(("overlap", "seen"), [("none", 17.89e-3), ("ddp", 1.836e-3)])
def test_the_whole_allreduce_stands_beside_what_is_seen_of_it(overlap, seen):
    """A ring over 8 hosts on 10 GB/s carries 2 7/8 of 102,228,128 B: 17.89 ms, and some latencies.
    Beside the backward pass the last bucket alone is seen."""
    row = verdict(small(workload__allreduce__overlap=overlap), "local")
    assert row["allreduce_alone_s"] == pytest.approx(2 * 7 / 8 * 102_228_128 / 10e9, rel=0.05)
    assert row["allreduce_s"] == pytest.approx(seen, rel=0.01)
    text = terminal_text(tables([row]))
    assert "seen" in text and f"{row['allreduce_alone_s']:.3g}" in text


def test_check_prints_a_row_for_each_run_and_no_scenario(capsys):
    printed = checked(capsys, "quickstart")
    assert len(printed.splitlines()) < 40
    for run in RUNS:
        strategy = run.split()[0]  # what does not fit stands in the next line
        (bound, *_) = [line for line in printed.splitlines() if line.split()[:1] == [strategy]]
        assert bound.split()[-1] == "compute"
    assert "v100-sxm2-16gb" not in printed
    assert "Warning" not in printed


def test_the_slowest_resource_is_named(capsys):
    printed = checked(capsys, "quickstart", "--set", "cluster.parallel_file_system.open_rate=4 k/s")
    (line,) = [line for line in printed.splitlines() if "file opens" in line]
    assert line.split()[0] == "global-pfs"
    assert "15.2" in line  # 61,000 files or so that are not in memory


OFFERED = "global_shuffle:source=ssd (2 GB on the SSD of a host, which has"


@pytest.mark.parametrize(
    ("ssd", "line"),
    [
        ("1.6 TB", f"Would also fit on the hosts: {OFFERED} 1.6 TB)."),
        ("1.2 GB", f"Would not fit: {OFFERED} 1.2 GB: 800 MB too much)."),
    ],
)
def test_a_copy_on_every_ssd_is_offered_or_said_to_be_too_large(ssd, line, capsys):
    """100,000 samples of 20 kB are 2 GB. The shards of the other strategies are there already."""
    size = ("workload.dataset.num_samples=100000", "workload.dataset.sample_size={mean: 20 kB}")

    def offered(*values):
        return checked(capsys, "quickstart", *(w for v in (*size, *values) for w in ("--set", v)))

    assert line in offered(f"cluster.ssd.capacity={ssd}")
    alone = offered("workload.exchange=global_shuffle:source=ssd", "cluster.ssd.capacity=1.6 TB")
    assert "global_shuffle:source=ssd" not in alone
    assert "Would also fit on the hosts: local_shuffle (" in alone


def test_strategies_that_hold_samples_in_a_way_of_their_own_are_offered_nothing(capsys):
    order = "workload.exchange=loader_shuffle:order=webdataset,samples_per_shard=100"
    (row,) = json.loads(checked(capsys, "quickstart", "--set", order, "--json"))
    assert row["offers"] == []


def test_check_says_what_compute_is_made_of(capsys):
    """A batch of 40 ms on one GPU, 3 ms of DDP's hooks, and jitter off."""
    of = "workload.model.accelerators.v100-sxm2-16gb"
    values = {
        of: "{forward: 40 ms / 192, measured_batch: 64}",
        "workload.local_batch_size": 64,
        "workload.dataset.num_samples": 64 * 64 * 10,
        "workload.jitter": "{compute: 0}",
        "workload.allreduce.overlap": "ddp",
    }
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    printed = checked(capsys, "quickstart", *words)
    (line,) = [each for each in printed.splitlines() if each.startswith("Compute of")]
    assert line.startswith(
        "Compute of an average iteration: 40 ms from the step times, 3 ms for hooks"
    )
    assert "while gradients travel" in line
    assert "jitter" not in line


def test_staging_from_an_archive_says_what_single_files_take():
    """800 files at 100 opens a second take 8 s; the archive is limited by bytes alone."""
    row = verdict(small(cluster__parallel_file_system__open_rate="100 /s"), "local")
    assert row["staging_s"] < 1 and row["staging_files_s"] == pytest.approx(8.0)
    said = terminal_text(tables([row]))
    assert "files opened one by one take 8 s (workload.staging.format: files)" in said
    staging = {"format": "files"}
    row = verdict(small(workload__staging=staging), "local")
    assert row["staging_files_s"] == row["staging_s"] > 0
    assert "archive" not in terminal_text(tables([row]))


def test_decoding_by_few_workers_is_named_beside_that_on_all_cores():
    """100 samples of 1 ms are decoded by 2 workers in 50 ms, or in half by 2 threads each."""
    for threads, seconds in ((1, 0.05), (2, 0.025)):
        loader = {"workers": 2, "prefetch": 4, "threads": threads}
        row = verdict(small(workload__loader=loader), "local")
        assert row["decode_by_workers_s"] == pytest.approx(seconds)
        assert row["decode_by_workers_s"] > row["resources_s"]["decode"]
        row["epoch_s"] = 9.9 * seconds
        said = f"loader workers take {1e3 * seconds:.3g} ms to decode"
        assert said in terminal_text(tables([row]))
        row["epoch_s"] = 10.1 * seconds
        assert said not in terminal_text(tables([row]))


def test_the_tables_can_be_had_for_a_paper(capsys):
    printed = checked(capsys, "quickstart", "--to", "latex")
    assert printed.count("\\toprule") == printed.count("\\end{tabular}") == 3
    assert "local @64" in printed


def test_full_prints_the_scenario_instead(capsys):
    document = yaml.safe_load(checked(capsys, "quickstart", "--full"))
    assert document["cluster"]["name"] == "abci"


def test_json_has_a_row_for_each_run(capsys):
    rows = json.loads(checked(capsys, "quickstart", "--json"))
    assert [row["run"] for row in rows] == RUNS
    for row, scenario in zip(rows, load_scenario("quickstart").runs().values(), strict=True):
        found = bounds(scenario)
        assert row["epoch_s"] == found.epoch
        assert row["resources_s"] == found.resources
        assert row["compute_s"] * row["iterations"] == pytest.approx(found.compute)
        assert row["allreduce_s"] * row["iterations"] == pytest.approx(found.allreduce)
        assert row["storage_nbytes"] == scenario.storage_per_host
        assert row["warnings"] == []
    parts = rows[2]["exchange"]
    assert [row["exchange"] is None for row in rows] == [True, True, False]
    assert rows[2]["exchange_s"] == pytest.approx(
        sum(parts[name] for name in ("work_s", "waiting_s", "barriers_s", "wire_s"))
    )
    assert (parts["barriers"], parts["payload"]) == ("none", "encoded")


# ---------------------------------------------------------------------------------------- warnings

STEP = "workload.model.accelerators.v100-sxm2-16gb.forward"
PFS_OPENS = "cluster.parallel_file_system.open_rate"
ODD = [
    # the key, its value and other values, and what is said of it
    (STEP, "110 s", {}, "118.4 us to 1.437 s|got 110 s|Write 110 ms|one sample, not of a batch"),
    (STEP, "500 ms", {"local_batch_size": 64}, "steps of 32.12 s|a batch divided by its 64"),
    ("workload.dataset.sample_size.mean", "1 GB", {}, "3.074 kB to 60.1 MB|got 1 GB|Write 1 MB"),
    (
        "cluster.topology.link_bandwidth",
        "25 Gbit/s",
        {},
        "9.7 GB/s to 50 GB/s|got 3.125 GB/s|Write 25 GB/s",
    ),
    (PFS_OPENS, "11 M/s", {"exchange": "global_shuffle"}, "20 k/s to 43 k/s|got 11 M/s"),
    ("workload.dataset.decode", "1 s", {}, "400 ns to 4.7 ms|got 1 s|Write 1 ms"),
    ("workload.local_batch_size", 101, {}, "shard of a rank, 100 samples|got 101|smaller batch"),
    ("workload.dataset.sample_size.std", "100 MB", {}, "10 times the mean, 100 kB|got 100 MB"),
]


@pytest.mark.parametrize(("key", "value", "others", "texts"), ODD)
def test_an_odd_value_is_told_with_what_is_usual(key, value, others, texts):
    values = {f"workload__{name}": of for name, of in others.items()}
    found = warnings(small(**values, **{key.replace(".", "__"): value}))
    assert [problem.path for problem in found] == [key]
    assert all(text in str(found[0]) for text in texts.split("|")), str(found[0])


def test_a_value_that_is_not_used_is_not_told():
    values = {"cluster__parallel_file_system__open_rate": "11 M/s"}
    assert warnings(small(**values)) == []
    files = small(**values, workload__staging={"format": "files"})
    assert [found.path for found in warnings(files)] == ["cluster.parallel_file_system.open_rate"]


def test_a_warning_is_printed_once_with_its_runs(capsys):
    half = ("--set", "cluster.parallel_file_system.open_rate=11 M/s")
    lines = [
        line for line in checked(capsys, "quickstart", *half).splitlines() if "Warning" in line
    ]
    assert len(lines) == 1
    assert lines[0].endswith("(global-pfs @64)")
    all_runs = ("--set", "workload.dataset.decode=1 s")
    printed = checked(capsys, "quickstart", *all_runs)
    (line,) = [line for line in printed.splitlines() if "Warning" in line]
    assert "@64" not in line


SLOW = "pascal-25g"
"""A machine of 25 Gbit/s, which is asked about: more often 25 GB/s are meant."""
STAND_INS = ("validation/horovod-pascal", "validation/mlperf-storage-")
"""Scenarios in which a small value stands for none: nothing is copied, reduced or computed."""


@pytest.mark.parametrize("name", shipped_names("scenarios"))
def test_no_shipped_scenario_is_odd(name):
    for scenario in load_scenario(name).runs().values():
        assert name.startswith(STAND_INS) or warnings(scenario) == []
        times = scenario.workload.model.accelerators[scenario.cluster.host.accelerator]
        # as the rules on odd values say of them
        assert scenario.workload.local_batch_size * (times.forward + times.backward_seconds) <= 1.3
        size = scenario.workload.dataset.stored
        assert size.std <= 1.7 * size.mean


PLACEHOLDER = re.compile(r"not used|not bind|so wide|so high|so that the")


def usual_of(documents):
    """By dotted key all quantities of documents, but those whose source calls them placeholders."""
    found = {}

    def walk(value, path, source):
        if isinstance(value, dict):
            own = value.get("source", source)
            for key, each in value.items():
                if key != "source":
                    inner = own
                    if isinstance(own, dict):
                        nested = {k.partition(".")[2]: v for k, v in own.items() if "." in k}
                        inner = own.get(key, nested)
                    walk(each, [*path, str(key)], inner)
        elif not (isinstance(source, str) and PLACEHOLDER.search(source)):
            found.setdefault(".".join(path), []).append(value)

    for prefix, document in documents:
        walk(document, prefix, "")
    return found


def test_what_is_usual_is_what_is_shipped():
    documents = [
        (["cluster"], yaml.safe_load((shipped_folder("topologies") / f"{name}.yaml").read_text()))
        for name in shipped_names("topologies")
        if name != SLOW
    ]
    for kind in ("model", "dataset"):
        entries = yaml.safe_load((CATALOG / f"{kind}s.yaml").read_text())
        documents += [(["workload", kind], entry) for entry in entries.values()]
    found = {}
    for key, values in usual_of(documents).items():
        name = re.sub(r"accelerators\.[^.]+", "accelerators.NAME", key)
        found.setdefault(name, []).extend(values)
    for key, usual in USUAL.items():
        values = [parsed(value, usual) for value in found[key]]
        values = [value for value in values if value is not None]
        assert (usual.low, usual.high) == (min(values), max(values)), key
        assert all(usual.is_near(value) for value in values)


def test_what_is_far_from_the_usual():
    """Ten times beyond what is shipped, or as many times as a quantity says."""
    unit = Dimension.SECONDS
    for usual, factor in (
        (UsualRange(3.0, 50.0, unit), 10.0),
        (UsualRange(3.0, 50.0, unit, 3.0), 3.0),
    ):
        ends = 3.0 / factor, 50.0 * factor
        assert all(usual.is_near(end) for end in ends)
        assert not usual.is_near(0.999 * ends[0]) and not usual.is_near(1.001 * ends[1])


def parsed(value, usual: UsualRange):
    try:
        return parse_quantity(value, usual.dimension)
    except UnitError:
        return None


# -------------------------------------------------------------------------------- the simulation

PARTIAL = "partial_local_shuffle:exchange_fraction"
IMPORTANCE = "importance_exchange:exchange_fraction"
LARGE = "large/imagenet21k-16384"
MEASURED = [
    # CPU s without start, MB: on one core of an AMD EPYC with benchmarks/effort.py
    ("quickstart", "local_shuffle", {}, 0.28, 259),
    ("paper/strategies", "global_shuffle", {"world_size": 1024}, 1.34, 320),
    ("abci-imagenet1k", f"{PARTIAL}=0.1", {}, 2.92, 351),
    ("abci-imagenet1k", f"{PARTIAL}=0.7", {}, 14.5, 497),
    ("paper/importance", f"{IMPORTANCE}=0.1", {"world_size": 512}, 3.63, 390),
    (LARGE, f"{PARTIAL}=0.1", {"time_tolerance": 0.0}, 31.9, 1349),
    ("validation/resnet50-summit", "local_shuffle", {"epochs": 1}, 0.80, 343),
    ("validation/deepcam-selene", "local_shuffle", {}, 1.42, 318),
]


HALVING = {"source": "assumed", "kind": "halving_doubling", "rails": 2}
HALVING |= {"intra_host_latency": "3.4 us", "inter_host_latency": "9.6 us"}
HALVING |= {"intra_host_bus_bandwidth": "21 GB/s", "inter_host_bus_bandwidth": "6.3 GB/s"}
OVERLAPS = {"none": (1.62, 329), "ddp": (6.00, 356), "horovod": (12.5, 520)}
"""The same for an epoch of local shuffling at 2048 ranks of ABCI with this allreduce."""


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_the_estimate_knows_flows_edges_and_parts_of_an_allreduce(overlap):
    seconds, megabytes = OVERLAPS[overlap]
    values = {
        "epochs": 1,
        "workload.exchange": "local_shuffle",
        "workload.allreduce": {**HALVING, "overlap": overlap},
    }
    found = effort(load_scenario("abci-imagenet1k", values))
    assert 0.5 < (START + found.seconds) / (START + seconds) < 2
    assert 0.5 < found.nbytes / (megabytes * 1e6) < 2
    assert (found.allreduces.flows, found.allreduces.edges) == (26624, 100352)
    iterations = 20
    assert found.allreduces.slowed == (0 if overlap == "none" else 2048 * iterations)
    if overlap == "ddp":  # five buckets of ResNet-50
        assert (found.allreduces.count, found.allreduces.sizes) == (5 * iterations, 5)
    if overlap == "none":
        assert (found.allreduces.count, found.allreduces.sizes) == (iterations, 1)


def test_one_rank_and_more_than_are_looked_at_cost_no_allreduce():
    for values in ({"world_size": 1}, {"world_size": 2}):
        found = effort(small(**values)).allreduces
        assert (found.count > 0) == (values["world_size"] > 1)


@pytest.mark.parametrize(("name", "exchange", "values", "seconds", "megabytes"), MEASURED)
def test_the_estimate_is_right_within_a_factor_of_2(name, exchange, values, seconds, megabytes):
    found = effort(load_scenario(name, {"sweep": {}, "workload.exchange": exchange, **values}))
    assert 0.5 < (START + found.seconds) / (START + seconds) < 2
    assert 0.5 < found.nbytes / (megabytes * 1e6) < 2


def test_the_cost_of_a_cell_is_about_that_of_its_scenario():
    scenario = load_scenario("abci-imagenet1k")
    cell, found = RunCell(scenario.to_dict(), "x"), effort(scenario)
    assert cell.cost == pytest.approx(found.seconds, rel=0.05)
    assert cell.memory == found.nbytes - SHARED_NBYTES


def test_jobs_cost_and_take_what_all_of_them_do():
    """Beside what a process has anyway, once for each job. What is not valid costs nothing."""
    jobs = {"a": {"world_size": 2}, "b": {"world_size": 4, "epochs": 2}}
    scenario = place_jobs(small(jobs=jobs))
    cell = JobsCell(scenario.to_dict(), "x", timeline="none")
    first, second = (effort(job) for job in scenario.of_jobs().values())
    assert cell.cost == pytest.approx(first.seconds + second.seconds)
    assert cell.memory == pytest.approx(first.nbytes + second.nbytes - 2 * SHARED_NBYTES)
    unknown = JobsCell({**scenario.to_dict(), "world_size": -1}, "x")
    assert (unknown.cost, unknown.memory) == (0, 0)
    assert cell.parts == {
        f"{job}.{table}.parquet" for job in jobs for table in ("iterations", "links", "sources")
    }
    ranks = JobsCell(scenario.to_dict(), "x", timeline="ranks")
    assert ranks.parts - cell.parts == {f"{job}.timeline_of_ranks.parquet" for job in jobs}


def test_packets_cost_time():
    values = {"sweep": {}, "workload.exchange": "local_shuffle"}
    fluid = effort(load_scenario("quickstart", values))
    packets = effort(load_scenario("quickstart", {**values, "network.kind": "packet"}))
    assert packets.seconds > 10 * fluid.seconds
