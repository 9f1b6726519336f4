"""The testbed without root: routes and commands, what is missing, limits, tables, folder, cleaning
up."""

import ast
import json
import math
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.errors import InputError, SimshuffleError
from simshuffle.extensions.calibration.validation.table import read_rows
from simshuffle.extensions.calibration.validation.testbed import check_shape, predict_makespan
from simshuffle.extensions.calibration.validation.testbed_patterns import PATTERNS, NamespaceShape
from simshuffle.study import engine
from simshuffle.study.study import fingerprint
from simshuffle_testbed import commands, figures, hosts, measure, namespaces
from simshuffle_testbed.commands import NamespaceNetwork
from simshuffle_testbed.hosts import Measured, Processors
from simshuffle_testbed.measure import FIT, GLOO, Measurement, Run
from simshuffle_testbed.study import QUESTIONS, STUDY, collect, request, verdict
from tests import measured
from tests.drawn import laid_out, rows_of
from tests.measured import DATE, runs_of

BED = NamespaceNetwork(NamespaceShape())
WIDER = NamespaceNetwork(NamespaceShape(leaves=4, hosts_per_leaf=4, spines=2))


# ------------------------------------------------------------------------------ routes and commands


@pytest.mark.parametrize("bed", [BED, WIDER], ids=["8 hosts", "16 hosts"])
def test_the_tables_of_the_namespaces_lead_where_the_simulated_routes_lead(bed):
    hosts_ = np.arange(bed.shape.hosts, dtype=np.int32)
    for src in hosts_:
        for dst in hosts_[hosts_ != src]:
            simulated = [
                link
                for link in bed.routes(np.array([src]), np.array([dst]))[0].tolist()
                if link >= 0
            ]
            node, walked = bed.host_names[src], []
            while node != bed.host_names[dst]:
                walked.append(bed.next_links[node][int(dst)])
                assert bed.nodes_of_link[walked[-1]][0] == node
                node = bed.nodes_of_link[walked[-1]][1]
            assert walked == simulated


def test_the_uplinks_of_a_leaf_share_the_destinations_evenly():
    up = [
        link
        for link, (near, far) in enumerate(WIDER.nodes_of_link)
        if near.startswith("leaf") and far.startswith("spine")
    ]
    assert len(up) == 8
    assert {len(WIDER.crossing[link]) for link in up} == {4 * 12 // 2}


def test_every_cable_joins_two_namespaces_of_the_run_and_no_other():
    lines = commands.cables(BED, "7")
    links = [line for line in lines if line.startswith("link")]
    assert len(lines) == len(BED.nodes) + len(links)
    assert len(links) == len(BED.links)  # two veth pairs a cable, as many as directed links
    for line in links:
        assert len(re.findall(r" netns simshuffle-7-\S+", line)) == 2
        # longer names are refused by the kernel
        assert len(re.search(r"link add (\S+)", line)[1]) <= 15


def test_nothing_leaves_the_namespaces():
    for node in BED.nodes:
        made = commands.node(BED, node)
        assert not any("default" in line.split("htb")[0] for line in made.ip + made.tc)
        assert all(
            re.match(r"route add 10\.77\.0\.\d+/32 via 10\.78\.", line)
            for line in made.ip
            if line.startswith("route")
        )
        assert sum(line.startswith("addr") for line in made.ip) == (node in BED.host_names)
        assert ("net/ipv4/ip_forward" in made.settings) == (node not in BED.host_names)


def test_a_link_is_shaped_and_takes_the_pairs_that_cross_it_in_turn():
    link = BED.links.index("leaf.0>spine.0")
    lines = commands.shaping(BED, link)
    assert lines[0].startswith(
        f"qdisc add dev {commands.data_device(link)} root handle 1: tbf rate 40000000bit "
    )
    flows = [
        re.findall(r"10\.77\.0\.(\d+)/32", line) for line in lines if " u32 match ip src" in line
    ]
    assert [(int(src) - 1, int(dst) - 1) for src, dst in flows] == BED.crossing[link]
    assert len({line.split("flowid ")[1] for line in lines if "flowid" in line}) == len(flows)


def test_what_is_taken_for_an_acknowledgement_is_shorter_than_any_full_packet():
    mask = int(re.search(r"match u16 0 (0x\w+) at 2", commands.shaping(BED, 0)[-1])[1], 16)
    assert 52 & mask == 84 & mask == 0  # bare acknowledgements, without and with selective ones
    assert all(size & mask for size in range(commands.SMALL, commands.MTU + 1))


def test_a_queue_holds_the_whole_window_so_that_nothing_is_dropped():
    assert commands.QUEUE * 1448 > commands.WINDOW


# ---------------------------------------------------------------------------------- what is missing


@pytest.fixture
def nothing_is_run(monkeypatch):
    """Commands are noted and not run."""
    done = []

    def note(arguments, text=""):
        done.append((list(arguments), text))
        return ""

    monkeypatch.setattr(namespaces, "run_command", note)
    return done


def test_without_root_and_iproute2_it_says_so_and_stops_with_2(monkeypatch, capsys, here):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: None)
    assert main(["machine", "testbed", "--quick"]) == 2
    said = capsys.readouterr().err
    assert "must be root" in said and "sudo" in said
    assert "ip: is missing" in said and "tc: is missing" in said and "iproute2" in said
    assert not list(here.iterdir())


@pytest.mark.parametrize("lacking", list(namespaces.NEEDED))
def test_a_kernel_without_a_part_is_told_by_its_name(monkeypatch, lacking):
    removed = []

    def run(arguments, text=""):
        if arguments[3:] == namespaces.NEEDED[lacking].split():
            raise SimshuffleError("tc: Specified qdisc kind is unknown.")
        removed.extend(re.findall("netns del (.*)", text))
        return ""

    monkeypatch.setattr(namespaces, "run_command", run)
    problems = namespaces.missing_in_kernel()
    assert [problem.path for problem in problems] == [lacking]
    assert "kernel" in str(problems[0])
    assert removed == [f"simshuffle-{os.getpid()}-probe"]


def test_a_container_without_namespaces_is_told(monkeypatch):
    def run(arguments, text=""):
        raise SimshuffleError("mount --make-shared /run/netns failed: Operation not permitted")

    monkeypatch.setattr(namespaces, "run_command", run)
    assert "network namespaces: cannot be made here" in str(namespaces.missing_in_kernel()[0])


def test_a_command_that_fails_is_no_traceback():
    with pytest.raises(SimshuffleError, match="no-such-program"):
        namespaces.run_command(["no-such-program"])
    with pytest.raises(SimshuffleError, match="status 3"):
        namespaces.run_command([sys.executable, "-c", "raise SystemExit(3)"])


# -------------------------------------------------------------------------------------- cleaning up


def test_namespaces_of_dead_processes_are_abandoned_and_no_others():
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [f"simshuffle-{dead.pid}-h0000", f"simshuffle-{os.getpid()}-h0000", "simshuffle-mine"]
    assert namespaces.abandoned(names) == names[:1]


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, SimshuffleError, SystemExit])
def test_the_bed_is_removed_whatever_happens(nothing_is_run, trouble):
    def fail():
        with namespaces.built(BED) as run:
            assert run == str(os.getpid())
            raise trouble

    with pytest.raises(trouble):
        fail()
    removed = re.findall("netns del (.*)", nothing_is_run[-1][1])
    assert removed == [commands.namespace(str(os.getpid()), node) for node in BED.nodes]


def test_a_host_that_dies_is_told_with_its_last_words():
    pipe = subprocess.PIPE
    code = "import sys; print('a line'); print('no sample', file=sys.stderr); sys.exit(4)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        process.wait()
        crew = hosts.Crew([process])
        with pytest.raises(SimshuffleError, match=r"host 0 .* status 4: no sample|Expecting value"):
            list(_tolerant(crew))


def _tolerant(crew):
    try:
        yield from crew.hear(float("inf"))
    except json.JSONDecodeError as error:
        raise SimshuffleError(str(error)) from None


def test_the_program_on_a_host_needs_the_standard_library_alone():
    tree = ast.parse(Path(hosts.__file__).with_name("worker.py").read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_the_pairs_of_the_fit_and_of_the_opposite_flows_are_on_two_leaf_switches():
    """The first host of each of two leaf switches of 3 hosts; a short flow has a quarter."""
    shape = NamespaceShape(hosts_per_leaf=3)
    made = [PATTERNS[name](shape, 1000, 0) for name in ("single_short", "single", "opposite")]
    assert [[*zip(flows.src, flows.dst, flows.nbytes, strict=True)] for flows in made] == [
        [(0, 3, 250)],
        [(0, 3, 1000)],
        [(0, 3, 1000), (3, 0, 1000)],
    ]


# ------------------------------------------------------------------------------------------- limits


def test_the_fit_is_always_measured_and_patterns_without_torch_are_left_out_with_the_reason(
    monkeypatch,
):
    monkeypatch.setattr(measure, "has_torch", lambda: False)
    assert measure.chosen(["opposite"], quick=False) == (("single_short", "single", "opposite"), {})
    names, left_out = measure.chosen([], quick=False)
    assert set(names) == set(PATTERNS) - set(GLOO)
    assert left_out == dict.fromkeys(GLOO, "not measured: torch is missing")


# ------------------------------------------------------------------------------------------- tables


def test_a_network_that_is_fluid_is_predicted_without_error():
    result = measured.result()
    assert result.meta["overhead"] == pytest.approx({"efficiency": 0.95, "startup": 0.002})
    patterns = result.tables["patterns"]
    assert np.allclose(patterns.loc[patterns["reason"] == "", "error"], 0.0)
    assert np.allclose(result.tables["flows"]["error"], 0.0)
    assert result.tables["verdicts"]["same"].all()
    assert len(result.tables["verdicts"]) == len(QUESTIONS) - 1


def test_the_error_is_that_of_the_prediction():
    known = measured.result(times=1.25).tables["patterns"].set_index("pattern")
    assert known.loc["incast", "error"] == pytest.approx(0.8 - 1.0)
    assert known.loc["incast", "flow_error_p50"] == pytest.approx(0.8 - 1.0)
    assert known.loc["single", "error"] == pytest.approx(0.0, abs=1e-9)


def test_what_was_left_out_has_its_flows_and_no_times():
    row = measured.result().tables["patterns"].set_index("pattern").loc["gloo_partial"]
    assert (row["flows"], row["nbytes"]) == (50, 50 * 125_000)
    assert (row["repetitions"], row["held_up"]) == (0, 0)
    assert row[["measured_s", "low_s", "high_s", "predicted_s", "error"]].isna().all()


def held_up(*arguments):
    return Run("single", 1, Measured(*arguments)).held_up


def counted(repetitions, *others):
    """The tables of runs of three patterns, measured as often as there are settings for them."""
    patterns = ("single_short", "single", "opposite")
    wanted = measure.Settings(nbytes=1_000_000, repetitions=repetitions, patterns=patterns)
    runs = [run for values in others for run in runs_of(wanted, **values)]
    made = collect(Measurement(wanted, runs, DATE), {})
    return made, made["patterns"].set_index("pattern").loc["opposite"]


def test_runs_that_were_held_up_do_not_count_if_others_do():
    assert held_up([1.0], 0.0, 0.03, 1.0, 0.0)
    assert held_up([1.0], 0.0, 0.0, 1.0, 0.06)
    assert not held_up([1.0], 0.9, 0.01, 1.0, 0.0)
    made, row = counted(2, {}, {"times": 9.0, "late": 99.0})
    assert (row["repetitions"], row["held_up"]) == (2, 2)
    assert row["error"] == pytest.approx(0.0, abs=1e-9)
    assert len(made["runs"]) == 12
    assert set(made["flows"]["measured_s"].round(6)) == set(made["flows"]["predicted_s"].round(6))


def test_runs_that_were_held_up_count_each_where_no_other_is_left():
    _, row = counted(1, {"late": 99.0}, {"times": 2.0, "late": 99.0})
    assert (row["repetitions"], row["held_up"]) == (2, 2)
    assert row["low_s"] == pytest.approx(row["predicted_s"])
    assert row["measured_s"] == pytest.approx(1.5 * row["predicted_s"])


def test_shares_of_the_processors_are_shares_whatever_the_kernel_counts():
    # the count of waiting for I/O, which is part of the idle time, may go back
    assert Processors(100, 0, 200).shares(Processors(90, 0, 210)) == (1.0, 0.0)
    assert Processors(100, 0, 200).shares(Processors(140, 10, 300)) == pytest.approx((0.5, 0.1))


@pytest.mark.parametrize(
    ("ratio", "faster"), [(0.5, "a"), (0.98, "alike"), (1.02, "alike"), (1.5, "b")]
)
def test_makespans_within_three_percent_are_alike(ratio, faster):
    assert verdict(ratio) == faster


# ---------------------------------------------------------------------------------- folder and text


def test_the_folder_says_what_was_done(tmp_path):
    result = measured.result()
    result.save(tmp_path / "bed")
    meta = json.loads((tmp_path / "bed" / "meta.json").read_text())
    assert meta["date"].startswith("2026-01-02") and meta["settings"]["repetitions"] == 3
    assert meta["bed"]["mtu_bytes"] == 1500
    assert meta["kernel"] == platform.release() and meta["processors"] == os.cpu_count()
    assert not list(tmp_path.glob(".*"))


def test_a_measurement_is_never_taken_for_another(tmp_path):
    """No cell could be kept of it, and what was measured is part of its fingerprint."""
    assert STUDY.stages == ()
    one = measured.tiny()
    slower = replace(one.runs[0], measured=replace(one.runs[0].measured, late=0.5))
    others = [
        one,
        replace(one, date=DATE + timedelta(seconds=1)),
        replace(one, runs=[slower, *one.runs[1:]]),
        replace(one, settings=replace(one.settings, limit=901.0)),
    ]
    prints = [fingerprint(STUDY, request(other)) for other in others]
    assert len(set(prints)) == len(prints)
    folder = engine.run(STUDY, request(one)).save(tmp_path / "bed", draw=False)
    found = [engine.find_complete_result(STUDY, folder, wanted) is not None for wanted in prints]
    assert found == [True, False, False, False]


@pytest.fixture
def bed_of_the_tests(monkeypatch, tmp_path):
    """The verb measures, and what it measures was made up; what it asks for is noted."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def measure_all(wanted, progress):
        asked.append(wanted)
        return Measurement(wanted, runs_of(wanted), DATE)

    monkeypatch.setattr(measure, "measure_all", measure_all)
    return asked


def test_the_verb_measures_writes_shows_and_keeps(bed_of_the_tests, tmp_path, capsys):
    chosen = ["--pattern", "opposite", "--nbytes", "1 MB", "--seed", "3", "--keep-as", "kept.csv"]
    assert main(["machine", "testbed", "--quick", *chosen]) == 0
    (asked,) = bed_of_the_tests
    assert (asked.nbytes, asked.repetitions, asked.seed) == (1_000_000, 2, 3)
    assert asked.patterns == ("single_short", "single", "opposite")
    (folder,) = (tmp_path / "results").glob("testbed-*-*")
    shown = capsys.readouterr()
    assert f"Tables: {folder.relative_to(tmp_path)}" in shown.out
    assert "Summary: kept.csv" in shown.out
    assert (tmp_path / "kept.csv").read_bytes() == (folder / "summary.csv").read_bytes()
    assert not list((tmp_path / "results").glob(".*"))
    assert dict(simshuffle.read(folder).meta)["settings"]["seed"] == 3


def test_a_place_that_is_taken_is_found_before_the_measurement(bed_of_the_tests, tmp_path, capsys):
    quick = ["machine", "testbed", "--quick", "--out", "bed"]
    assert main([*quick, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"patterns", "verdicts", "meta"}
    assert main(quick) == 2
    assert "another result" in capsys.readouterr().err
    (tmp_path / "bed" / "notes.txt").write_text("years of work")
    assert main([*quick, "--force"]) == 2
    (tmp_path / "bed" / "notes.txt").unlink()
    capsys.readouterr()
    assert main([*quick, "--keep-as", "bed"]) == 2
    assert "--keep-as: is a folder" in capsys.readouterr().err
    assert len(bed_of_the_tests) == 1
    assert main([*quick, "--force"]) == 0
    assert len(bed_of_the_tests) == 2


def test_two_measurements_with_one_folder_are_not_made_at_once(bed_of_the_tests, tmp_path, capsys):
    with engine.hold_folder(tmp_path / "bed"):
        assert main(["machine", "testbed", "--quick", "--out", "bed"]) == 2
    assert "is in use by another process" in capsys.readouterr().err
    assert not bed_of_the_tests


def test_the_kept_rows_are_rows_of_the_validation_and_enough_to_predict_again(tmp_path):
    rows = measured.result().derived["summary"]
    rows.to_csv(tmp_path / "kept.csv", index=False)
    kept = [row.case for row in read_rows(tmp_path)]
    assert kept == [name for name in PATTERNS if name not in GLOO]
    assert set(rows["set"]) == set(rows["kind"]) == {"testbed"}
    assert (rows["use"] == "fit").tolist() == [name in FIT for name in rows["case"]]
    for row in rows.to_dict("records"):
        values = dict(part.split("=", 1) for part in row["values"].split(";"))
        assert predict_makespan(values) == pytest.approx(row["measured"], rel=1e-4)
        assert row["source"].startswith("simshuffle machine testbed on 2026-01-02, Linux ")
        assert row["source"].endswith(" 3 repetitions")


def test_the_text_says_what_was_fitted_and_what_was_held_up():
    lines = [part for part in measured.result(late=99.0).parts() if isinstance(part, str)]
    assert "8 hosts on 2 leaves, 2 spines, every link 40 Mbit/s" in lines[0]
    assert "efficiency 0.9500, start-up 2.00 ms" in lines[1]
    assert "36 of 36 runs were held up" in lines[2]


def test_the_figure_has_units_and_every_pattern_that_was_measured():
    chart = figures.testbed_chart(measured.result().tables["patterns"])
    figure = laid_out(chart)
    left, right = figure.axes
    assert figure.get_size_inches()[0] == pytest.approx(3.4)
    assert left.get_xlabel() == "makespan (s)" and "%" in right.get_xlabel()
    assert len(left.get_yticklabels()) == len(PATTERNS) - len(GLOO)
    known = measured.result().tables["patterns"].query("reason == ''")
    assert rows_of(chart, "bar")["x2"].tolist() == known["predicted_s"].tolist()
    assert rows_of(chart, "point")["x"].tolist() == known["measured_s"].tolist()


@pytest.fixture
def saved(tmp_path):
    return engine.run(STUDY, request(measured.tiny())).save(tmp_path / "bed", draw=False)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("settings", lambda value: {**value, "more": 1.0}),
        ("settings", lambda value: {**value, "shape": {**value["shape"], "leaves": "2"}}),
        ("settings", lambda value: {name: value[name] for name in value if name != "seed"}),
        ("overhead", lambda value: {"efficiency": value["efficiency"]}),
        ("overhead", lambda value: "none"),
        ("kernel", lambda value: 6),
        # numbers that JSON does not have
        ("processors", lambda value: math.nan),
        ("bed", lambda value: {"mtu": math.inf}),
    ],
)
def test_what_was_set_is_read_back_whole_or_refused(key, changed, saved):
    meta = json.loads((saved / "meta.json").read_text())
    (saved / "meta.json").write_text(json.dumps(meta | {key: changed(meta[key])}))
    with pytest.raises(InputError, match=rf"meta.json: {key}|must (have finite numbers|be within)"):
        simshuffle.read(saved)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda rows: rows.head(0), "must have rows"),
        (lambda rows: rows.assign(predicted_s=math.nan), "numbers for every pattern"),
        (lambda rows: rows.assign(high_s=rows["low_s"] / 2), "from low_s to high_s"),
        (lambda rows: pd.concat([rows, rows]), "must not repeat pattern"),
    ],
)
def test_patterns_that_cannot_be_drawn_are_refused(changed, said, saved):
    rows = changed(pd.read_csv(saved / "patterns.csv"))
    rows.to_csv(saved / "patterns.csv", index=False)
    with pytest.raises(InputError, match=said):
        simshuffle.read(saved)


# --------------------------------------------------------------------------------- predicting again

WORDS = (
    "leaves=2;hosts_per_leaf=4;spines=2;rate=40 Mbit/s;pattern=single;nbytes=5 MB;seed=1;"
    "efficiency=0.5;startup=1 ms"
)
VALUES = dict(word.split("=") for word in WORDS.split(";"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(
            (word, f"values.{word.split('=')[0]}")
            for word in (
                *("leaves=two", "rate=40", "pattern=gossip", "efficiency=0", "efficiency=nan"),
                *("startup=1", "nbytes=x"),
            )
        ),
        ("leaves=100", "16 hosts"),
    ],
)
def test_values_that_cannot_be_read_or_built_are_named(changes, said):
    with pytest.raises(InputError, match=said):
        predict_makespan(VALUES | dict([changes.split("=")]))
    assert check_shape(NamespaceShape()) == NamespaceShape()
    with pytest.raises(InputError) as error:
        predict_makespan(
            {key: value for key, value in VALUES.items() if key not in {"rate", "seed"}}
        )
    assert [problem.path for problem in error.value.problems] == ["values.rate", "values.seed"]
