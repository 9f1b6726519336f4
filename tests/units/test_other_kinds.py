"""What is kept, renamed, dropped and filled in where a record gets another kind."""

import json
import warnings
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

import pytest
import yaml

from simshuffle.cli import main
from simshuffle.errors import InputError, SimshuffleWarning
from simshuffle.extensions.learning.filtering.record import load_study as load_filtering
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.train.study import load_study

ALLREDUCE = "workload.allreduce.kind"
CASES = yaml.safe_load((Path(__file__).parents[1] / "data" / "other_kinds.yaml").read_text())


@contextmanager
def said():
    """The notes that are made meanwhile."""
    notes = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield notes
    assert all(issubclass(each.category, SimshuffleWarning) for each in found)
    notes += [str(each.message) for each in found]


def loaded(name, values):
    with said() as notes:
        scenario = load_scenario(name, values)
    assert [str(note) for note in scenario.notes] == notes
    return scenario, " ".join(notes)


def file_of(tmp_path, name="quickstart", **changes):
    """A scenario file like a shipped one, resolved, with other values of the workload."""
    plain = load_scenario(name).to_dict() | {"sweep": {}}
    plain["workload"] |= changes
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def test_rings_become_trees_with_the_latencies_of_trees():
    """A level of a tree is no step of a ring: NCCL 2.7.8 has 28 and 50 us for it, 3.4 and 9.6 us
    for a step (src/graph/tuning.cc)."""
    scenario, note = loaded("paper/strategies", {ALLREDUCE: "tree"})
    allreduce = scenario.workload.allreduce
    assert allreduce.kind == "tree"
    assert allreduce.channels == 2
    assert allreduce.intra_host_latency == pytest.approx(28e-6)
    assert allreduce.inter_host_latency == pytest.approx(50e-6)
    assert allreduce.inter_host_bus_bandwidth(1e8) == 6.3e9
    assert "rings is now channels" in note
    assert "dropped: intra_host_latency = 3.4 us, inter_host_latency = 9.6 us" in note
    assert "filled in: intra_host_latency = 28 us, inter_host_latency = 50 us" in note
    assert "ring" not in allreduce.source["intra_host_latency"]
    assert "rings" not in allreduce.source


def test_rings_become_the_rings_of_nccl_and_back():
    """The latencies of a ring's steps are the same values under other names."""
    scenario, note = loaded("paper/strategies", {ALLREDUCE: "nccl"})
    allreduce = scenario.workload.allreduce
    assert allreduce.channels == 2
    assert allreduce.ring_intra_host_latency == pytest.approx(3.4e-6)
    assert allreduce.ring_inter_host_latency == pytest.approx(9.6e-6)
    assert allreduce.tree_inter_host_latency == pytest.approx(50e-6)
    assert allreduce.plateau == 1.9
    assert "NVLink ring" in allreduce.source["ring_intra_host_latency"]
    assert "inter_host_latency is now ring_inter_host_latency" in note
    assert "dropped" not in note

    with said() as notes:
        back = scenario.with_values({ALLREDUCE: "ring"})
    assert "tree_inter_host_latency = 50 us" in notes[0]
    assert "plateau = 1.9" in notes[0]
    before = load_scenario("paper/strategies").workload.allreduce
    assert back.workload.allreduce.model_copy(update={"source": ""}) == before.model_copy(
        update={"source": ""}
    )
    assert len(back.notes) == 2


@pytest.mark.parametrize("kind", ["halving_doubling", "recursive_doubling", "torus", "sharp"])
def test_a_step_is_a_step_in_every_algorithm_of_messages(kind):
    allreduce = loaded("paper/strategies", {ALLREDUCE: kind})[0].workload.allreduce
    assert allreduce.rails == 2
    assert allreduce.inter_host_latency == pytest.approx(9.6e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["set"]))
def test_what_the_new_kind_does_not_take_is_dropped_and_said(case, tmp_path):
    scenario, note = loaded(file_of(tmp_path, **case["workload"]), case["set"])
    for key, value in case["found"].items():
        assert attrgetter(key)(scenario) == value
    assert (case["said"] in note) if case["said"] else note == ""


def test_topologies_and_routings():
    topology = "cluster.topology"
    values = {f"{topology}.kind": "star", f"{topology}.hosts": 8, f"{topology}.hcas_per_host": 2}
    values |= {f"{topology}.switch_latency": "90 ns", "world_size": 16}
    scenario, note = loaded("quickstart", values)
    assert scenario.cluster.topology.link_bandwidth == 12.5e9
    assert "racks = 32" in note
    assert "kept: link_bandwidth, cable_latency, source" in note
    assert set(scenario.cluster.topology.source) == {
        "link_bandwidth",
        "cable_latency",
        "hcas_per_host",
    }
    routed = {"cluster.routing": {"kind": "ecmp", "queue_pairs": 4}}
    with_ecmp = load_scenario("quickstart", routed)
    with said() as notes:
        with_ecmp.with_values({"cluster.routing.kind": "up_down"})
    assert "queue_pairs = 4" in notes[0]


def test_networks_and_overlaps():
    packet = load_scenario("quickstart", {"network": {"kind": "packet", "mtu": "256 B"}})
    with said() as notes:
        packet.with_values({"network.kind": "fluid"})
    assert "mtu = 256 B" in notes[0]
    overlap = {"kind": "ddp", "bucket": "1 MB", "slowdown": 0.3}
    both = load_scenario("quickstart", {"workload.allreduce.overlap": overlap, "sweep": {}})
    with said() as notes:
        changed = both.with_values({"workload.allreduce.overlap.kind": "horovod"})
    assert "bucket = 1 MB" in notes[0]
    assert changed.workload.allreduce.overlap.slowdown == 0.3


def test_every_run_of_a_sweep_over_kinds_says_what_became_of_its_values(capsys):
    sweep = f"sweep={{{ALLREDUCE}: [ring, tree, nccl]}}"
    assert main(["check", "quickstart", "--set", sweep, "--json"]) == 0
    captured = capsys.readouterr()
    notes = [
        [warning["rule"] for warning in row["warnings"] if warning["key"] == ALLREDUCE]
        for row in json.loads(captured.out)
    ]
    assert [len(each) for each in notes] == [0, 1, 1]
    assert "28 us" in notes[1][0]


def test_it_is_said_once(capsys):
    assert main(["check", "quickstart", "--set", f"{ALLREDUCE}=tree"]) == 0
    captured = capsys.readouterr()
    assert "replaces the kind 'ring'" not in captured.err
    assert " ".join(captured.out.split()).count("replaces the kind 'ring'") == 1
    sized = ["--sizes", "8 B", "--hosts", "2"]
    words = ["study", "collective", "quickstart", *sized]
    for option in (["--set", f"{ALLREDUCE}=tree"], ["--allreduce", "kind=tree"]):
        assert main([*words, *option]) == 0
        captured = capsys.readouterr()
        assert captured.err.count(f"{ALLREDUCE}: replaces the kind 'ring'") == 1
        assert main([*words, *option, "--json"]) == 0
        (note,) = json.loads(capsys.readouterr().out)["notes"]
        assert "filled in: intra_host_latency = 28 us" in note


def test_a_value_that_was_wrong_before_is_not_dropped(tmp_path):
    path = file_of(tmp_path)
    plain = yaml.safe_load(path.read_text())
    plain["workload"]["allreduce"]["inter_host_bus_bandwidth"] = "6.3 GB"
    path.write_text(yaml.safe_dump(plain))
    with pytest.raises(InputError, match="inter_host_bus_bandwidth"):
        load_scenario(path, {ALLREDUCE: "tree"})


def test_what_is_swept_has_the_keys_of_the_new_kind(tmp_path):
    path = file_of(tmp_path)
    plain = yaml.safe_load(path.read_text())
    rings, latency = "workload.allreduce.rings", "workload.allreduce.inter_host_latency"
    plain["sweep"] = {rings: [1, 2], latency: ["9 us", "10 us"]}
    path.write_text(yaml.safe_dump(plain))
    scenario, note = loaded(path, {ALLREDUCE: "tree"})
    assert scenario.sweep == {"workload.allreduce.channels": [1, 2]}
    assert "inter_host_latency" in note
    assert len(scenario.runs()) == 2


def fragment(tmp_path, values, measured):
    records = [{"key": key, "value": values[key], "source": "a test"} for key in measured]
    path = tmp_path / "fragment.yaml"
    path.write_text(yaml.safe_dump({"values": values, "calibrated": records}))
    return str(path)


def test_measured_values_follow_and_large_buffers_are_not_corrected_twice(tmp_path):
    """As where a fragment is included in a scenario of kind nccl."""
    key = "workload.allreduce.inter_host_latency"
    scenario_file = file_of(tmp_path)
    include = {"include": fragment(tmp_path, {key: "7 us"}, [key])}
    scenario, note = loaded(scenario_file, include | {ALLREDUCE: "nccl"})
    allreduce = scenario.workload.allreduce
    assert allreduce.ring_inter_host_latency == pytest.approx(7e-6)
    assert allreduce.plateau == 1
    assert "plateau = 1" in note
    (record,) = scenario.calibrated
    assert record.key == "workload.allreduce.ring_inter_host_latency"
    scenario, note = loaded(scenario_file, include | {ALLREDUCE: "tree"})
    assert scenario.workload.allreduce.inter_host_latency == pytest.approx(50e-6)
    assert scenario.calibrated == []


def test_a_fragment_may_set_a_kind(tmp_path):
    scenario_file = file_of(tmp_path)
    include = {"include": fragment(tmp_path, {ALLREDUCE: "tree"}, [])}
    scenario, note = loaded(scenario_file, include)
    assert scenario.workload.allreduce.inter_host_latency == pytest.approx(50e-6)
    assert "filled in" in note
    odd = {ALLREDUCE: "tree", "workload.allreduce.rings": 1}
    with pytest.raises(InputError, match=r"rings: is not a known key"):
        load_scenario(scenario_file, {"include": fragment(tmp_path, odd, [])})


def test_studies_of_trainings():
    """What a network is made of has the same names in each of them, as ``width``."""
    with said() as notes:
        study = load_study("quick", {"model.kind": "small_cnn", "partition.kind": "sorted"})
    assert {run.model.kind for run in study.all_runs()} == {"small_cnn"}
    assert study.model.width == 32
    with said() as notes:
        filtered = load_filtering("data-optimised-digits", {"extractors.0.model.kind": "mlp"})
    assert filtered.extractors[0].model.width == 16
    assert not notes
    # a value that is given stays
    with pytest.raises(InputError, match=r"data\.flat"):
        load_study("quick", {"data.kind": "classification", "data.flat": True})
    given = {"retrain.model.kind": "resnet", "retrain.model.width": 8}
    with pytest.raises(InputError, match=r"retrain\.model\.width"):
        load_filtering("data-optimised-digits", given)
    with said() as notes:
        load_study("quick", {"data.kind": "classification"})
    assert "data.kind: replaces the kind 'digits' and its values (dropped: flat" in notes[0]
