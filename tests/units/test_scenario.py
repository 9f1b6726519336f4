"""Scenarios: finding, resolving, overriding, sweeping, writing back; random streams; sources of the
shipped numbers."""

import itertools
import json
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simshuffle.errors import InputError, ScenarioError
from simshuffle.fabric.topology import Abci
from simshuffle.job.scenario.scenario import all_runs, load_scenario, load_scenarios
from simshuffle.spec.library import (
    CATALOG,
    catalog_entry,
    parse_documents,
    read_yaml,
    shipped_folder,
    shipped_names,
)
from simshuffle.studies.presentation.page_parts import list_values
from simshuffle.workload.exchange import GlobalShuffle, LocalShuffle, PartialLocalShuffle

SCENARIOS = shipped_names("scenarios")
TOPOLOGIES = shipped_names("topologies")
SMALL = {"cluster": "small-fat-tree", "world_size": 8, "workload.allreduce.rings": 1}
EXCHANGE = "workload.exchange"
FRACTION = "workload.exchange.exchange_fraction"


def raw(shipped_name="quickstart", **changes):
    values = yaml.safe_load((shipped_folder("scenarios") / f"{shipped_name}.yaml").read_text())
    return {**values, **changes}


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


# ------------------------------------------------------------------------------------------ finding


def test_the_shipped_files_are_the_known_ones():
    assert {"quickstart", "abci-imagenet1k", "paper/strategies", "paper/scaling"} <= set(SCENARIOS)
    assert {"abci", "small-fat-tree"} <= set(TOPOLOGIES)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_shipped_scenario_is_the_same_by_name_and_by_path(name, here):
    by_path = load_scenario(shipped_folder("scenarios") / f"{name}.yaml")
    assert (
        load_scenario(name)
        == by_path
        == load_scenario(str(shipped_folder("scenarios") / f"{name}.yaml"))
    )


def test_a_file_in_the_working_directory_does_not_hide_a_shipped_name(here):
    write(here / "quickstart", raw(name="another"))
    assert load_scenario("quickstart").name == "quickstart"


def line_of_hosts(hosts=3):
    graph = nx.MultiGraph()
    graph.add_node("s", kind="switch")
    for number in range(hosts):
        graph.add_node(f"h{number}", kind="host")
        graph.add_edge(f"h{number}", "s", bandwidth="10 GB/s", latency="100 ns")
    return json.dumps(nx.node_link_data(graph, edges="links"))


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Writes the scenario ../study/s.yaml, beside which there are a cluster and a network."""
    cluster = read_yaml(shipped_folder("topologies") / "small-fat-tree.yaml")[0]
    folder = tmp_path / "study"
    write(folder / "mine.yaml", {**cluster, "name": "mine"})
    (folder / "net.json").write_text(line_of_hosts())
    write(folder / "own.yaml", {**cluster, "topology": {"kind": "custom", "path": "net.json"}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def written(**changes):
        base = raw(**{"world_size": 3, "epochs": 1, "sweep": {}, **changes})
        base["workload"]["allreduce"]["rings"] = 1
        return write(folder / "s.yaml", base)

    return written


def test_a_cluster_is_found_beside_the_scenario(beside):
    path = beside(cluster="./mine.yaml")
    assert load_scenario(path).cluster.name == "mine"
    assert load_scenario("../study/s.yaml").cluster.name == "mine"


def test_a_cluster_of_a_sweep_is_found_beside_the_scenario_too(beside):
    clusters = {"cluster": ["./mine.yaml", "small-fat-tree"]}
    runs = load_scenario(beside(cluster="small-fat-tree", sweep=clusters)).runs()
    assert [run.cluster.name for run in runs.values()] == ["mine", "small-fat-tree"]


def test_a_custom_topology_is_found_beside_the_scenario_and_the_resolved_scenario_stands_alone(
    beside,
):
    scenario = load_scenario(beside(cluster="./own.yaml"))
    assert scenario.cluster.topology.path == str(Path("../study/net.json").resolve())
    assert re.fullmatch(r"[0-9a-f]{64}", scenario.cluster.topology.sha256)
    Path("resolved.yaml").write_text(scenario.to_yaml())
    assert load_scenario("resolved.yaml") == scenario
    Path("../study/net.json").write_text(line_of_hosts(4))
    with pytest.raises(InputError, match="sha256"):  # it is another network now
        scenario.with_values({"epochs": 2})


def test_several_documents_are_several_scenarios(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(
        yaml.safe_dump(raw(name="a")) + "---\n" + yaml.safe_dump(raw(name="b")), encoding="utf-8"
    )
    assert [s.name for s in load_scenarios(path)] == ["a", "b"]
    with pytest.raises(ScenarioError, match="must hold one scenario"):
        load_scenario(path)


# --------------------------------------------------------------------------------------- overriding


def test_values_are_set_by_dotted_key_below_what_is_only_named():
    values = {
        "world_size": 128,
        "cluster.ssd.capacity": "2 TB",
        "workload.model.gradient_size": "1 MB",
        "workload.dataset": "cifar100",
        "workload.loader.workers": 2,
        "network.fair_share": "message",
    }
    scenario = load_scenario("quickstart", values)
    assert scenario.world_size == 128
    assert scenario.cluster.ssd.capacity == 2e12
    assert scenario.cluster.name == "abci"
    assert scenario.workload.model.gradient_size == 1e6
    assert (
        scenario.workload.dataset.num_samples
        == catalog_entry("datasets", "cifar100")["num_samples"]
    )
    assert scenario.workload.loader.workers == 2
    assert scenario.network.fair_share == "message"


def test_a_scenario_with_other_values_is_a_new_one_and_the_old_one_stays():
    scenario = load_scenario("abci-imagenet1k")
    other = scenario.with_values({"seed": 7, FRACTION: 0.3})
    assert (other.seed, other.workload.exchange.exchange_fraction) == (7, 0.3)
    assert (scenario.seed, scenario.workload.exchange.exchange_fraction) == (1, 0.1)
    assert other.with_values({"seed": 1, FRACTION: 0.1}) == scenario
    with pytest.raises(ScenarioError, match="world_size"):
        scenario.with_values({"world_size": 0})
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 2


PARTIAL = "partial_local_shuffle:exchange_fraction"


@pytest.mark.parametrize(
    ("text", "record", "values"),
    [
        ("local_shuffle", LocalShuffle, {}),
        ("local_shuffle:source=pfs", LocalShuffle, {"source": "pfs"}),
        ("global_shuffle", GlobalShuffle, {"source": "pfs"}),
        ("global_shuffle:source=ssd", GlobalShuffle, {"source": "ssd"}),
        (f"{PARTIAL}=1", PartialLocalShuffle, {"exchange_fraction": 1.0}),
        (
            f"{PARTIAL}=0.1,schedule.barriers=message,schedule.overlap=false,schedule.read=50 us",
            PartialLocalShuffle,
            {
                "exchange_fraction": 0.1,
                "schedule": {"barriers": "message", "overlap": False, "read": "50 us"},
            },
        ),
    ],
)
def test_the_short_form_of_a_strategy(text, record, values):
    exchange = load_scenario("quickstart", {EXCHANGE: text}).workload.exchange
    assert exchange == record(kind=text.partition(":")[0], **values)


# ------------------------------------------------------------------------------------- writing back


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_resolved_scenario_is_read_back_as_an_equal_one_and_written_alike(name, here):
    scenario = load_scenario(name)
    (here / "again.yaml").write_text(scenario.to_yaml())
    again = load_scenario("again.yaml")
    assert again == scenario
    assert again.to_yaml() == scenario.to_yaml()
    assert list(again.runs()) == list(scenario.runs())
    assert again.runs() == scenario.runs()


def bare_quantities(value, path=""):
    """Paths of numbers in what `to_dict` gives for a quantity that should carry a unit."""
    if isinstance(value, dict):
        return [
            found
            for key, below in value.items()
            for found in bare_quantities(below, f"{path}.{key}".strip("."))
        ]
    return [path] if isinstance(value, float) else []


def test_only_pure_numbers_are_written_without_a_unit():
    plain = {
        "background_load",
        "exchange_fraction",
        "host_decode",
        "latency_spread",
        "least_difference",
        "compute",
        "read",
        "taper",
        "time_tolerance",
        "tolerance",
    }
    for scenario in (load_scenario("abci-imagenet1k"), load_scenario("abci-imagenet1k", SMALL)):
        assert {path.rsplit(".", 1)[-1] for path in bare_quantities(scenario.to_dict())} <= plain


@given(
    fraction=st.floats(0, 1),
    jitter=st.floats(0, 1e6),
    latency=st.floats(0, 1e3),
    seed=st.integers(0, 2**70),
)
def test_any_value_survives_being_written_and_read(fraction, jitter, latency, seed):
    scenario = BASE.with_values(
        {FRACTION: fraction, "workload.jitter.compute": jitter, "seed": seed}
    )
    assert scenario.model_validate(parse_documents(scenario.to_yaml(), "")[0]) == scenario
    changed = scenario.model_copy(
        update={
            "cluster": scenario.cluster.model_copy(
                update={"ssd": BASE.cluster.ssd.model_copy(update={"latency": latency})}
            )
        }
    )
    assert changed.model_validate(parse_documents(changed.to_yaml(), "")[0]) == changed


BASE = load_scenario("abci-imagenet1k", SMALL)


# ----------------------------------------------------------------------------------------- sweeping


def test_reading_and_checking_a_scenario_builds_no_network(monkeypatch):
    monkeypatch.delattr(Abci, "build")
    assert len(load_scenario("paper/scaling").runs()) == 12
    with pytest.raises(ScenarioError, match="must not exceed the 4352 GPUs of abci"):
        load_scenario("abci-imagenet1k", {"world_size": 4353})
    with pytest.raises(ScenarioError, match=r"cluster.host.hcas: .* for each HCA; got 4 HCAs"):
        load_scenario("abci-imagenet1k", {"cluster.host.hcas": 4})


def test_a_record_is_set_before_what_is_in_it_whatever_their_order():
    values = {FRACTION: 0.5, EXCHANGE: "partial_local_shuffle:exchange_fraction=0.1"}
    for ordered in (values, dict(reversed(values.items()))):
        assert BASE.with_values(ordered).workload.exchange.fraction == 0.5
        assert list(BASE.combinations({key: [value] for key, value in ordered.items()})) == [
            "partial-0.5 streamlined @8"
        ]


def test_a_sweep_of_too_many_runs_is_refused_when_it_is_read():
    sweep = {f"workload.loader.{key}": list(range(1, 400)) for key in ("workers", "prefetch")}
    with pytest.raises(ScenarioError, match=r"sweep: must make at most 100000 combinations"):
        load_scenario("abci-imagenet1k", {**SMALL, "sweep": sweep})


def test_a_scenario_without_sweep_is_one_run():
    assert BASE.runs() == {"partial-0.1 streamlined @8": BASE}


def test_the_runs_of_a_sweep_are_all_combinations_in_order():
    fractions, seeds = [0.1, 0.5], [3, 4]
    runs = BASE.model_copy(
        update={"sweep": {"world_size": [4, 8], FRACTION: fractions, "seed": seeds}}
    ).runs()
    assert [
        (r.world_size, r.workload.exchange.exchange_fraction, r.seed) for r in runs.values()
    ] == list(itertools.product([4, 8], fractions, seeds))
    assert list(runs)[:3] == [
        "partial-0.1 streamlined @4 seed=3",
        "partial-0.1 streamlined @4 seed=4",
        "partial-0.5 streamlined @4 seed=3",
    ]
    assert all(run.sweep == {} for run in runs.values())


def test_the_runs_of_the_shipped_sweeps_have_the_papers_names():
    assert list(load_scenario("quickstart").runs()) == [
        "global-pfs @64",
        "local @64",
        "partial-0.1 streamlined @64",
    ]
    strategies = [
        "global-pfs @2048",
        "global-ssd @2048",
        "local @2048",
        "partial-0.1 authors @2048",
    ]
    assert list(load_scenario("paper/strategies").runs()) == strategies
    scaling = list(load_scenario("paper/scaling").runs())
    assert scaling == [
        f"{name} @{size}"
        for size in (128, 512, 1024, 2048)
        for name in ("global-pfs", "local", "partial-0.1 authors")
    ]


def test_local_shuffle_from_the_pfs_has_a_name_of_its_own():
    assert BASE.with_values({EXCHANGE: "local_shuffle:source=pfs"}).label() == "local-pfs @8"


@pytest.mark.parametrize(
    "sweep",
    [
        {
            EXCHANGE: [
                "partial_local_shuffle:exchange_fraction=0.1",
                "partial_local_shuffle:exchange_fraction=0.1,schedule.barriers=message",
            ]
        },
        {FRACTION: [0.1234567, 0.1234568]},
        {"workload.loader": [{"workers": 1}, {"workers": 2}]},
    ],
    ids=["schedules", "close fractions", "mappings"],
)
def test_no_combination_of_a_sweep_is_lost_to_one_of_the_same_name(sweep):
    scenario = BASE.model_copy(update={"sweep": sweep})
    try:
        runs = scenario.runs()
    except ScenarioError:
        return  # refusing is as good as telling them apart
    assert len(runs) == 2


def test_setting_a_swept_key_removes_its_axis():
    scenario = load_scenario("paper/scaling", {"world_size": 512})
    assert list(scenario.runs()) == ["global-pfs @512", "local @512", "partial-0.1 authors @512"]
    assert list(
        load_scenario("paper/scaling", {"world_size": 512, EXCHANGE: "local_shuffle"}).runs()
    ) == ["local @512"]


def test_a_value_set_below_a_swept_key_is_used_or_refused_but_never_ignored():
    try:
        runs = load_scenario("quickstart", {FRACTION: 0.7}).runs()
    except ScenarioError:
        return
    assert all(run.workload.exchange.fraction in {None, 0.0, 0.7} for run in runs.values())


def test_the_same_run_names_of_two_scenarios_get_the_scenarios_names_in_front():
    other = BASE.model_copy(update={"name": "other"})
    assert list(all_runs([BASE, other])) == [
        "abci-imagenet1k partial-0.1 streamlined @8",
        "other partial-0.1 streamlined @8",
    ]
    with pytest.raises(ScenarioError, match="two runs must not be the same"):
        all_runs([BASE, BASE])


# ----------------------------------------------------------------------------------- random streams


def test_a_random_stream_is_the_same_every_time():
    again = load_scenario("abci-imagenet1k", SMALL)
    assert np.array_equal(
        BASE.rng("jitter", 3).integers(2**63, size=50),
        again.rng("jitter", 3).integers(2**63, size=50),
    )


def test_random_streams_differ_by_name_by_number_and_by_seed():
    other = BASE.with_values({"seed": 2})
    keys = [("a",), ("b",), ("a", 1), ("a", 2), ("a", 1, 2), ("a", 2, 1)]
    streams = [*(BASE.rng(*key) for key in keys), other.rng("a")]
    draws = [tuple(stream.integers(2**63, size=4).tolist()) for stream in streams]
    assert len(set(draws)) == len(draws)


def test_random_streams_are_independent_of_one_another():
    before = BASE.rng("b").random(1000)
    used = BASE.rng("a")
    used.random(12345)
    assert np.array_equal(BASE.rng("b").random(1000), before)
    correlation = np.corrcoef(
        [
            BASE.rng("a").random(1000),
            before,
            BASE.rng("b", 1).random(1000),
            BASE.rng("b", 2).random(1000),
        ]
    )
    assert np.abs(correlation - np.eye(4)).max() < 0.2


def test_a_random_stream_does_not_depend_on_other_values_of_the_scenario():
    other = BASE.with_values({"world_size": 4, FRACTION: 0.5, "name": "x"})
    assert np.array_equal(other.rng("sample_size").random(10), BASE.rng("sample_size").random(10))


# ------------------------------------------------------------------------------------------ sources


def unsourced(record):
    """Dotted paths of the numbers of a record that no ``source`` of it, or of a record around it,
    names."""
    quantity = re.compile(r"^[+-]?[\d.]+([eE][+-]?\d+)? ?\S+$")
    return [
        path
        for path, value, source in list_values(record)
        if not isinstance(value, bool)
        and (isinstance(value, (int, float)) or quantity.match(str(value)))
        and not (source or "").strip()
    ]


def test_the_walk_over_sources_finds_what_is_missing():
    record = {"a": 1, "b": {"c": "5 GB", "d": "text"}, "source": {"a": "somewhere", "b.c": " "}}
    assert unsourced(record) == ["b.c"]
    assert unsourced({**record, "source": "somewhere"}) == []
    assert unsourced({"a": 1, "source": ""}) == ["a"]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_number_of_a_shipped_topology_has_a_source(name):
    (cluster,) = read_yaml(shipped_folder("topologies") / f"{name}.yaml")
    assert unsourced(cluster) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("models", "datasets", "failures")
        for name in read_yaml(CATALOG / f"{kind}.yaml")[0]
    ],
)
def test_every_number_of_a_catalog_entry_has_a_source(kind, name):
    entry = read_yaml(CATALOG / f"{kind}.yaml")[0][name]
    assert unsourced(entry) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_number_of_a_shipped_allreduce_has_a_source(name):
    assert unsourced(raw(name)["workload"]["allreduce"]) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_source_names_only_keys_that_exist(name):
    def dangling(record, path=""):
        found = []
        source = record.get("source")
        if isinstance(source, dict):
            for dotted in source:
                at = record
                # names of accelerators hold no dots, so a dotted key is a path
                for part in dotted.split("."):
                    at = at.get(part) if isinstance(at, dict) else None
                if at is None:
                    found.append(f"{path}: {dotted}")
        for key, value in record.items():
            if isinstance(value, dict) and key != "source":
                found += dangling(value, f"{path}.{key}")
        return found

    assert dangling(load_scenario(name).to_dict()) == []


@pytest.mark.parametrize("name", list(read_yaml(CATALOG / "models.yaml")[0]))
def test_every_model_of_the_catalog_can_be_simulated_on_abci(name):
    assert load_scenario("quickstart", {"workload.model": name}).workload.model.name == name


@pytest.mark.parametrize("name", list(read_yaml(CATALOG / "datasets.yaml")[0]))
def test_every_data_set_of_the_catalog_can_be_read(name):
    scenario = load_scenario(
        "quickstart", {"workload.dataset": name, EXCHANGE: "global_shuffle:source=pfs"}
    )
    assert scenario.workload.dataset.name == name


OWN_MODEL = {
    "num_parameters": 5,
    "gradient_size": "20 B",
    "input_size": "4 B",
    "accelerators": {"v100-sxm2-16gb": {"forward": "1 ms", "backward": "2 ms", "update": "0 s"}},
}


def test_a_scenario_may_bring_models_of_its_own():
    scenario = load_scenario(
        "quickstart", {"models": {"mine": OWN_MODEL}, "workload.model": "mine"}
    )
    assert (scenario.workload.model.name, scenario.workload.model.gradient_size) == ("mine", 20)
    other = scenario.with_values({"workload.model": "vgg16"})
    assert other.workload.model.name == "vgg16"
    assert other.with_values({"workload.model": "mine"}) == scenario


def test_a_model_of_the_scenario_hides_that_of_the_catalog():
    scenario = load_scenario(
        "quickstart", {"models": {"resnet50": OWN_MODEL}, "workload.model": "resnet50"}
    )
    assert scenario.workload.model.gradient_size == 20


def test_changing_the_model_in_use_leaves_the_profile_as_it_was():
    values = {
        "models": {"mine": OWN_MODEL},
        "workload.model": "mine",
        "workload.model.gradient_size": "40 B",
    }
    scenario = load_scenario("quickstart", values)
    assert (scenario.workload.model.gradient_size, scenario.models["mine"].gradient_size) == (
        40,
        20,
    )
