"""Bad input: exit status 2, a message with the path of the key, what was given and what to do, and
nothing written."""

import copy
import importlib
import json
import re

import networkx as nx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.cli import main
from simshuffle.errors import ScenarioError
from simshuffle.scenario.scenario import load_scenario
from simshuffle.spec.library import shipped

REMEDY = re.compile(
    r"Did you mean|Known:|Add|Write|Use|Give|Name|Put|Set|Save|See|Check|Correct|Indent|For"
    r" example|Lower|Mark|Connect|Quote"
)

PACE = (
    "intra_host_latency: 3 us, inter_host_latency: 9 us, intra_host_bus_bandwidth: 21 GB/s,"
    " inter_host_bus_bandwidth: 6 GB/s"
)


def base():
    """A small valid scenario, as plain values."""
    values = yaml.safe_load((shipped("scenarios") / "quickstart.yaml").read_text(encoding="utf-8"))
    values.pop("sweep")
    values |= {"cluster": "small-fat-tree", "world_size": 8, "epochs": 1}
    values["workload"]["allreduce"]["rings"] = 1
    return values


def changed(key, value):
    """The small scenario with another value at a dotted key."""
    values = base()
    at = values
    *parents, last = key.split(".")
    for part in parents:
        at = at[part]
    at[last] = value
    return values


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs the command line in an empty folder with some files; returns the message of the
    refusal."""

    def call(arguments, files=None):
        monkeypatch.chdir(tmp_path)
        for name, content in (files or {}).items():
            path = tmp_path / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        status = main(arguments)
        captured = capsys.readouterr()
        assert status == 2, captured.err
        assert "Traceback" not in captured.err + captured.out
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        assert [path for path in tmp_path.rglob("*") if path.is_dir()] == []
        return captured.err

    return call


def assert_helpful(message, key, given, *more):
    """One of the message's lines names the key, shows the value, and says what to do."""
    lines = [line for line in message.splitlines() if f"{key}:" in line]
    assert lines, f"no line about {key!r} in:\n{message}"
    (line,) = lines[:1]
    for text in (given, *more):
        assert text in line
    # expected values of a quantity are a remedy too
    assert REMEDY.search(line) or "such as" in line, f"no remedy in: {line}"


BY_SET = {
    "unknown key": (
        "workload.local_batchsize=32",
        "workload.local_batchsize",
        "32",
        "'local_batch_size'",
    ),
    "unknown key at the top": ("wrold_size=32", "wrold_size", "32", "'world_size'"),
    "unknown key of a strategy": (
        "workload.exchange=partial_local_shuffle:exchange_frac=0.1",
        "workload.exchange.exchange_frac",
        "0.1",
        "'exchange_fraction'",
    ),
    "unknown key of a topology": (
        "cluster.topology.rack=3",
        "cluster.topology.rack",
        "3",
        "'racks'",
    ),
    "unit missing": (
        "cluster.ssd.capacity=100",
        "cluster.ssd.capacity",
        "got 100",
        "has no unit",
        "TB",
    ),
    "unit missing in quotes": (
        "cluster.ssd.capacity='100'",
        "cluster.ssd.capacity",
        "got '100'",
        "has no unit",
    ),
    "unit of the wrong kind": (
        "cluster.ssd.capacity=100 GB/s",
        "cluster.ssd.capacity",
        "got '100 GB/s'",
        "another kind",
    ),
    "unit unknown": (
        "cluster.ssd.read_bandwidth=3 GBps",
        "cluster.ssd.read_bandwidth",
        "got '3 GBps'",
        "GB/s",
    ),
    "bandwidth of zero": (
        "cluster.ssd.read_bandwidth=0 GB/s",
        "cluster.ssd.read_bandwidth",
        "got '0 GB/s'",
        "greater than 0",
    ),
    "bandwidth of the links of zero": (
        "cluster.topology.link_bandwidth=0 B/s",
        "cluster.topology.link_bandwidth",
        "got '0 B/s'",
    ),
    "negative size": (
        "workload.model.gradient_size=-5 MB",
        "workload.model.gradient_size",
        "got '-5 MB'",
        "greater than 0",
    ),
    "negative time": (
        "cluster.ssd.latency=-1 us",
        "cluster.ssd.latency",
        "got '-1 us'",
        "equal to 0",
    ),
    "size that is not a number": (
        "workload.model.gradient_size=nan B",
        "workload.model.gradient_size",
        "got 'nan B'",
        "not a number",
    ),
    "size that is infinite": (
        "workload.model.gradient_size=1e400 B",
        "workload.model.gradient_size",
        "got '1e400 B'",
    ),
    "size beyond all measure": (
        "workload.model.gradient_size=1e999999 GB",
        "workload.model.gradient_size",
        "got '1e999999 GB'",
    ),
    "Q above 1": (
        "workload.exchange=partial_local_shuffle:exchange_fraction=1.5",
        "workload.exchange.exchange_fraction",
        "got 1.5",
    ),
    "Q below 0": (
        "workload.exchange=partial_local_shuffle:exchange_fraction=-0.1",
        "workload.exchange.exchange_fraction",
        "got -0.1",
    ),
    "Q that is not a number": (
        "workload.exchange=partial_local_shuffle:exchange_fraction=.nan",
        "workload.exchange.exchange_fraction",
        "nan",
    ),
    "Q beyond all measure": (
        f"workload.exchange.exchange_fraction=1{'0' * 400}",
        "workload.exchange.exchange_fraction",
        "got '1000",
    ),
    "Q missing": (
        "workload.exchange=partial_local_shuffle",
        "workload.exchange.exchange_fraction",
        "is required",
    ),
    "strategy that is not YAML": (
        "workload.exchange='partial_local_shuffle:exchange_fraction=['",
        "workload.exchange",
        "[",
    ),
    "strategy with a key below a value": (
        "workload.exchange=partial_local_shuffle:a=1,a.b=2",
        "workload.exchange",
        "a",
    ),
    "unknown strategy": (
        "workload.exchange=partial_shuffle",
        "workload.exchange.kind",
        "'partial_shuffle'",
        "'partial_local_shuffle'",
    ),
    "unknown model": ("workload.model=resnet5", "workload.model", "'resnet5'", "'resnet50'"),
    "unknown data set": (
        "workload.dataset=imagenet1",
        "workload.dataset",
        "'imagenet1'",
        "'imagenet1k'",
    ),
    "unknown cluster": ("cluster=abcd", "cluster", "'abcd'", "'abci'"),
    "cluster of an unknown user": (
        "cluster=~nobody-of-that-name/x.yaml",
        "cluster",
        "nobody-of-that-name",
    ),
    "cluster with too long a name": (f"cluster={'x' * 300}", "cluster", "xxx"),
    "unknown accelerator": (
        "cluster.host.accelerator=tpu",
        "workload.model.accelerators",
        "'tpu'",
        "v100-sxm2-16gb",
    ),
    "more ranks than GPUs": (
        "world_size=5000",
        "world_size",
        "got 5000",
        "4352 GPUs",
        "1088 hosts",
        "at most 4352",
    ),
    "more ranks than samples": (
        "workload.dataset.num_samples=40",
        "world_size",
        "got 64",
        "40 samples",
    ),
    "ranks beyond all measure": (f"world_size=1{'0' * 400}", "world_size", "1000"),
    "ranks as text": ("world_size=many", "world_size", "got 'many'", "whole number"),
    "ranks as a fraction": ("world_size=8.0", "world_size", "got 8.0", "whole number"),
    "ranks as a truth value": ("world_size=true", "world_size", "got True", "whole number"),
    "no ranks": ("world_size=0", "world_size", "got 0"),
    "no epochs": ("epochs=0", "epochs", "got 0"),
    "negative seed": ("seed=-1", "seed", "got -1"),
    "truth value as text": (
        (
            "workload.exchange={kind: partial_local_shuffle, exchange_fraction: 0.1, schedule:"
            " {overlap: 'yes'}}"
        ),
        "workload.exchange.schedule.overlap",
        "got 'yes'",
        "true or false",
    ),
    "messages of no samples": (
        (
            "workload.exchange={kind: partial_local_shuffle, exchange_fraction: 0.1, schedule:"
            " {samples_per_message: 0}}"
        ),
        "workload.exchange.schedule.samples_per_message",
        "got 0",
    ),
    "more rings than HCAs": (
        "workload.allreduce.rings=3",
        "workload.allreduce.rings",
        "got 3",
        "at most 2",
    ),
    "more channels than HCAs": (
        (
            "workload.allreduce={kind: tree, channels: 3, intra_host_latency: 28 us,"
            " inter_host_latency: 50 us, intra_host_bus_bandwidth: 21 GB/s,"
            " inter_host_bus_bandwidth: 6 GB/s}"
        ),
        "workload.allreduce.channels",
        "got 3",
        "at most 2 channels",
    ),
    "more rails than HCAs": (
        f"workload.allreduce={{kind: torus, rails: 3, {PACE}}}",
        "workload.allreduce.rails",
        "got 3",
        "at most 2 rails",
    ),
    "more leaders than HCAs": (
        f"workload.allreduce={{kind: hierarchical, leaders: 4, among_hosts: ring, {PACE}}}",
        "workload.allreduce.leaders",
        "got 4",
        "at most 2 leaders",
    ),
    "leaders in no known way": (
        f"workload.allreduce={{kind: hierarchical, leaders: 1, among_hosts: tree, {PACE}}}",
        "workload.allreduce.among_hosts",
        "got 'tree'",
        "'halving_doubling'",
    ),
    "hosts in no known order": (
        "workload.allreduce.order=leaf",
        "workload.allreduce.order",
        "got 'leaf'",
        "'as_given'",
    ),
    "an allreduce that is not there": (
        "workload.allreduce.kind=hypercube",
        "workload.allreduce.kind",
        "got 'hypercube'",
        "'tree'",
    ),
    "HCAs that do not divide the GPUs": ("cluster.host.hcas=3", "cluster.host", "multiple of hcas"),
    "below a plain value": ("name.x=3", "name.x", "'quickstart'", "plain value"),
    "a mapping expected": ("network=fluid", "network", "got 'fluid'", "mapping"),
    "empty sweep": ("sweep={world_size: []}", "sweep.world_size", "none"),
    "wrong value in a sweep": ("sweep={world_size: [8, many]}", "world_size", "got 'many'"),
    "Q above 1 in a sweep": (
        "sweep={workload.exchange.exchange_fraction: [0.1, 1.5]}",
        "workload.exchange.exchange_fraction",
        "got 1.5",
    ),
    "third value of a sweep": (
        "sweep={workload.exchange: [local_shuffle, global_shuffle, 'local_shuffle:source=tape']}",
        "workload.exchange.source",
        "got 'tape'",
        "value 3 of workload.exchange, 'local_shuffle:source=tape'",
    ),
    "second value of two keys": (
        "sweep={seed: [1, 2], world_size: [8, 16, 5000]}",
        "world_size",
        "got 5000",
        "value 3 of world_size, '5000'",
    ),
    "Q at the top": ("Q=0.1", "Q", "0.1", "Write workload.exchange.exchange_fraction."),
    "Q of a strategy": (
        "workload.exchange=partial_local_shuffle:Q=0.1",
        "workload.exchange.Q",
        "0.1",
        "Did you mean 'exchange_fraction'?",
    ),
    "Q of a strategy without one": (
        "workload.exchange=local_shuffle:Q=0.1",
        "workload.exchange.Q",
        "0.1",
        "Did you mean 'exchange_fraction'? Only other kinds have it.",
    ),
    "Q in a sweep": ("sweep={Q: [0.1]}", "Q", "0.1", "workload.exchange.exchange_fraction"),
    "ranks": ("ranks=64", "ranks", "64", "Did you mean 'world_size'?"),
    "a key in the wrong place": (
        "decode=1 ms",
        "decode",
        "'1 ms'",
        "Write workload.dataset.decode.",
    ),
    "unit in other letters": (
        "workload.dataset.sample_size.mean=110 KB",
        "workload.dataset.sample_size.mean",
        "got '110 KB'",
        "did you mean 'kB'?",
    ),
    "unknown key in a sweep": ("sweep={wrld_size: [8]}", "wrld_size", "got 8", "'world_size'"),
    "a sweep of sweeps": ("sweep={sweep: [{world_size: [1, 2]}]}", "sweep", "a mapping"),
}


@pytest.mark.parametrize("case", BY_SET)
def test_a_value_that_is_not_valid_is_refused_by_name(case, refused):
    assignment, key, given, *more = BY_SET[case]
    assert_helpful(refused(["run", "quickstart", "--set", assignment]), key, given, *more)


def test_every_wrong_value_of_a_sweep_is_told_at_once(refused):
    sweep = "sweep={world_size: [8, many], workload.local_batch_size: [0, 32, few]}"
    message = refused(["check", "quickstart", "--set", sweep])
    assert_helpful(message, "world_size", "got 'many'", "value 2 of world_size")
    assert "value 1 of workload.local_batch_size, '0'" in message
    assert "value 3 of workload.local_batch_size, 'few'" in message
    assert message.startswith("quickstart: 3 problems")


def test_a_wrong_value_on_the_command_line_of_sweep_is_told_by_its_place(refused):
    message = refused(
        ["sweep", "quickstart", "--over", "world_size=8,16,many", "--over", "seed=1,-2"]
    )
    assert_helpful(message, "world_size", "got 'many'", "value 3 of world_size, 'many'")
    assert "value 2 of seed, '-2'" in message


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_machine_whose_file_is_there_is_named_with_its_suffix(suffix, refused):
    scenario = yaml.safe_dump({**base(), "cluster": "mycluster"})
    machine = (shipped("topologies") / "abci.yaml").read_bytes()
    message = refused(["check", "s.yaml"], {"s.yaml": scenario, f"mycluster{suffix}": machine})
    texts = (f"There is a file mycluster{suffix}.", f"Write mycluster{suffix}:")
    assert_helpful(message, "cluster", "got 'mycluster'", *texts)
    swept = yaml.safe_dump({**base(), "sweep": {"cluster": ["small-fat-tree", "mycluster"]}})
    message = refused(["check", "s.yaml"], {"s.yaml": swept})
    assert_helpful(message, "cluster", "'mycluster'", "value 2 of cluster", texts[0])


def test_a_scenario_whose_file_is_there_is_named_with_its_suffix(refused):
    message = refused(["check", "s"], {"s.yaml": yaml.safe_dump(base())})
    assert "There is a file s.yaml. Write s.yaml:" in message


def test_check_refuses_what_run_refuses_with_the_same_words(refused):
    for assignment in (
        "world_size=5000",
        "cluster.ssd.capacity=100",
        "sweep={world_size: [8, many]}",
    ):
        arguments = ["quickstart", "--set", assignment]
        assert refused(["check", *arguments]) == refused(["run", *arguments])


def test_the_wrong_value_is_found_in_a_file_too(refused):
    message = refused(
        ["run", "s.yaml"],
        {"s.yaml": yaml.safe_dump(changed("workload.allreduce.inter_host_latency", 5))},
    )
    assert "s.yaml" in message
    assert_helpful(
        message, "workload.allreduce.inter_host_latency", "got 5", "has no unit", "'1.5 ms'"
    )


def test_a_data_set_that_does_not_fit_is_refused_with_the_numbers(refused):
    arguments = [
        "--set",
        "workload.exchange=global_shuffle:source=ssd",
        "--set",
        "cluster.ssd.capacity=100 GB",
    ]
    message = refused(["run", "abci-imagenet1k", *arguments])
    # 1,281,167 samples of 110 kB, 512 hosts with 4 GPUs
    assert_helpful(
        message,
        "workload.exchange",
        "140.9 GB",
        "100 GB",
        "40.93 GB",
        "512 hosts",
        "global_shuffle:source=pfs",
    )


def test_a_shard_that_does_not_fit_counts_what_is_received(refused):
    # 4 ranks of 8 a host: half of 65,000 x 30,769 B is 1 GB, and a tenth more
    setting = ["--set", "world_size=8", "--set", "cluster.ssd.capacity=1.05 GB"]
    message = refused(
        [
            "run",
            "quickstart",
            *setting,
            "--set",
            "workload.exchange=partial_local_shuffle:exchange_fraction=0.1",
        ]
    )
    assert_helpful(message, "workload.exchange", "1.1 GB", "1.05 GB")


# -------------------------------------------------------------------------------- custom topologies


def network():
    graph = nx.MultiGraph()
    graph.add_node("s", kind="switch", latency="90 ns")
    for number in range(3):
        graph.add_node(f"h{number}", kind="host")
        graph.add_edge(f"h{number}", "s", bandwidth="10 GB/s", latency="100 ns")
    return graph


def files_of(graph, **topology):
    cluster = yaml.safe_load(
        (shipped("topologies") / "small-fat-tree.yaml").read_text(encoding="utf-8")
    )
    cluster["topology"] = {"kind": "custom", "path": "net.json", **topology}
    values = changed("cluster", cluster)
    values["world_size"] = 2
    content = (
        graph
        if isinstance(graph, str | bytes)
        else json.dumps(nx.node_link_data(graph, edges="links"))
    )
    return {"s.yaml": yaml.safe_dump(values), "net.json": content}


def spoiled(kind):
    graph = network()
    edge = graph.edges["h1", "s", 0]
    match kind:
        case "loose part":
            graph.remove_edge("h2", "s")
        case "no hosts":
            nx.set_node_attributes(graph, "switch", "kind")
        case "no kind":
            del graph.nodes["h1"]["kind"]
        case "unknown kind":
            graph.nodes["h1"]["kind"] = "router"
        case "no bandwidth":
            del edge["bandwidth"]
        case "bandwidth without unit":
            edge["bandwidth"] = 10
        case "bandwidth of the wrong kind":
            edge["bandwidth"] = "10 GB"
        case "bandwidth of zero":
            edge["bandwidth"] = "0 GB/s"
        case "negative latency":
            edge["latency"] = "-1 ns"
        case "no latency":
            del edge["latency"]
        case "no links":
            edge["links"] = 0
        case "hosts without switch":
            graph.remove_node("s")
            graph.add_edge("h0", "h1", bandwidth="10 GB/s", latency="0 s")
            graph.add_edge("h1", "h2", bandwidth="10 GB/s", latency="0 s")
    return graph


SPOILED = {
    "loose part": ("h2", "must reach", "Add"),
    "no hosts": ("at least one node with kind 'host'", "Mark"),
    "no kind": ("nodes.h1.kind", "None", "'host', 'switch', 'storage' or 'other'"),
    "unknown kind": ("nodes.h1.kind", "'router'", "'host', 'switch', 'storage' or 'other'"),
    "no bandwidth": ("links.s-h1.bandwidth", "None", "has no unit"),
    "bandwidth without unit": ("links.s-h1.bandwidth", "got 10", "has no unit", "'12.5 GB/s'"),
    "bandwidth of the wrong kind": ("links.s-h1.bandwidth", "got '10 GB'", "'12.5 GB/s'"),
    "bandwidth of zero": ("bandwidth", "h1", "greater than 0"),
    "negative latency": ("latency", "h1", "at least 0"),
    "no latency": ("links.s-h1.latency", "None", "has no unit"),
    "no links": ("links.s-h1.links", "got 0", "at least 1"),
    "hosts without switch": ("nodes.h0", "link to a switch", "Connect"),
}


def test_the_custom_topology_that_the_others_are_made_from_is_valid(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in files_of(network()).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert main(["check", "s.yaml"]) == 0
    assert "partial-0.1 @2" in capsys.readouterr().out


@pytest.mark.parametrize("case", SPOILED)
def test_a_custom_topology_that_is_no_network_is_refused(case, refused):
    message = refused(["check", "s.yaml"], files_of(spoiled(case)))
    expected = [
        text.replace("s-h1", "h1-s") if "s-h1" in text and text not in message else text
        for text in SPOILED[case]
    ]
    assert all(text in message for text in expected), message
    # the key of the scenario that has to change, or whose file has to
    assert "cluster.topology" in message


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no JSON",
        "[1, 2]",
        "{}",
        '{"nodes": 3, "links": []}',
        b"\xff\xfe\x00",
        "null",
        "[" * 5000,
    ],
    ids=["empty", "text", "list", "empty mapping", "nodes as a number", "binary", "null", "deep"],
)
def test_a_custom_topology_of_another_format_is_refused(content, refused):
    message = refused(["check", "s.yaml"], files_of(content))
    assert "net.json" in message
    assert "node_link_data" in message


def test_a_custom_topology_that_is_missing_is_refused(refused):
    message = refused(["check", "s.yaml"], files_of(network(), path="other.json"))
    assert "other.json" in message
    assert "No such file" in message
    assert "relative to the scenario" in message


@pytest.mark.parametrize(
    "path", ["x" * 300, "a\0b", ""], ids=["too long", "with a zero byte", "empty"]
)
def test_a_custom_topology_with_an_impossible_path_is_refused(path, refused):
    refused(["check", "s.yaml"], files_of(network(), path=path))


def test_a_custom_topology_with_fewer_links_than_hcas_is_refused(refused):
    files = files_of(network())
    values = yaml.safe_load(files["s.yaml"])
    values["cluster"]["host"] |= {"gpus": 2, "hcas": 2}
    assert_helpful(
        refused(["check", "s.yaml"], {**files, "s.yaml": yaml.safe_dump(values)}),
        "cluster.host.hcas",
        "2 HCAs",
        "Lower",
    )


# -------------------------------------------------------------------------------------------- files

FILES = {
    "no YAML": ("name: [a\nb: }", ("line 2", "must be YAML")),
    "an empty file": ("", ("an empty file", "scenarios/")),
    "only a comment": ("# nothing\n", ("an empty file", "scenarios/")),
    "a list": ("- a\n- b\n", ("must be a mapping", "list", "world_size:")),
    "a number": ("5\n", ("must be a mapping", "int", "world_size:")),
    "a word": ("word\n", ("must be a mapping", "str", "world_size:")),
    "null": ("~\n", ("must be a mapping", "NoneType", "world_size:")),
    "a binary file": (bytes(range(256)), ("UTF-8", "other bytes", "Save it")),
    "zero bytes": (b"\x00\x01", ("must be YAML",)),
    "a key that is a list": ("? [a]\n: 3\n", ("line 1",)),
    "a key that is a number": ("1: 3\n", ("1:",)),
    "a loop of anchors": ("name: &a {x: *a}\n", ("line 1",)),
    "an endless nesting": ("[" * 20000, ("within one another",)),
    "an impossible date": ("name: 2001-99-99\n", ("must be YAML", "month")),
    "only a name": (
        "name: x\n",
        ("cluster: is required", "world_size: is required", "workload: is required", "Add it"),
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_scenario_is_refused(case, refused):
    content, texts = FILES[case]
    message = refused(["run", "s.yaml"], {"s.yaml": content})
    assert "s.yaml" in message.splitlines()[0]
    assert all(text in message for text in texts), message


@pytest.mark.parametrize(
    "content",
    ["", "a: 1\n---\nb: 2\n", "- a\n", "5\n", "[" * 20000],
    ids=["empty", "two documents", "list", "number", "deep"],
)
def test_a_cluster_file_that_is_no_cluster_is_refused(content, refused):
    message = refused(
        ["run", "s.yaml"],
        {"s.yaml": yaml.safe_dump(changed("cluster", "./c.yaml")), "c.yaml": content},
    )
    assert "cluster:" in message


def test_a_key_written_twice_is_refused_with_both_lines(refused):
    text = yaml.safe_dump(base(), sort_keys=False)
    first = next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith("world_size:"))
    last = len(text.splitlines()) + 1
    message = refused(["run", "s.yaml"], {"s.yaml": f"{text}world_size: 3\n"})
    assert f"line {last}, column 1" in message
    assert f"'world_size' is written twice (line {first} and here)" in message
    assert "nothing is constructed" not in message  # that rule is about another thing


def test_a_key_written_twice_is_refused_deep_inside(refused):
    message = refused(
        ["run", "s.yaml"], {"s.yaml": "workload:\n  loader:\n    workers: 1\n    workers: 2\n"}
    )
    assert "'workers' is written twice (line 3 and here)" in message


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['echo > executed']",
        "!!python/name:os.system",
        "!!python/object/new:os.system ['echo > executed']",
    ],
)
def test_a_file_that_wants_to_be_executed_is_refused_and_not_executed(tag, refused, tmp_path):
    for number, files in enumerate(
        [
            {"s.yaml": f"name: {tag}\n"},
            {"s.yaml": yaml.safe_dump(changed("cluster", "./c.yaml")), "c.yaml": f"name: {tag}\n"},
        ]
    ):
        message = refused(["run", "s.yaml"], files)
        assert "could not determine a constructor" in message, number
        assert not (tmp_path / "executed").exists()


def test_a_value_of_the_command_line_that_wants_to_be_executed_is_not(refused, tmp_path):
    message = refused(
        ["run", "quickstart", "--set", "name=!!python/object/apply:os.system ['echo > executed']"]
    )
    assert_helpful(message, "--set name", "os.system")
    assert not (tmp_path / "executed").exists()


def test_several_problems_of_a_file_are_listed_at_once(refused):
    values = base() | {"epochs": 0, "sed": 1, "world_size": "x"}
    values["workload"] |= {"local_batch_size": -1, "model": "resnet5", "dataset": 3}
    values["workload"]["allreduce"]["inter_host_latency"] = "5 GB"
    message = refused(["run", "s.yaml"], {"s.yaml": yaml.safe_dump(values)})
    keys = [
        "epochs",
        "sed",
        "world_size",
        "workload.local_batch_size",
        "workload.model",
        "workload.dataset",
    ]
    for key in [*keys, "workload.allreduce.inter_host_latency"]:
        assert f"  - {key}: " in message
    assert message.splitlines()[0] == "s.yaml: 7 problems"
    assert len(message.strip().splitlines()) == 8


def test_problems_of_what_the_values_mean_are_listed_beside_those_of_their_form(refused):
    values = base() | {"epochs": 0, "world_size": 17}
    message = refused(["run", "s.yaml"], {"s.yaml": yaml.safe_dump(values)})
    assert_helpful(message, "epochs", "got 0")
    assert_helpful(message, "world_size", "got 17", "16 GPUs")


def test_the_problems_of_several_files_say_which_file_they_are_in(refused):
    files = {
        "a.yaml": yaml.safe_dump(base() | {"epochs": 0}),
        "b.yaml": yaml.safe_dump(base() | {"seed": -1}),
    }
    lines = refused(["run", "a.yaml", "b.yaml", "nowhere.yaml"], files).splitlines()
    text = "\n".join(lines)
    for name, key in (("a.yaml", "epochs:"), ("b.yaml", "seed:")):
        # the last file that is named at or before the line of the problem
        at = next(n for n, line in enumerate(lines) if key in line)
        named = [re.findall(r"\b[ab]\.yaml\b", line) for line in lines[: at + 1]]
        assert [names[-1] for names in named if names][-1] == name, text
    assert "'nowhere.yaml'" in text


def test_unknown_scenarios_are_named_without_empty_headings(refused):
    message = refused(["run", "quickstrat", "nothing"])
    assert not message.startswith(","), message
    assert "'quickstrat'" in message
    assert "'nothing'" in message


# ------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize("verb", ["run", "check"])
@pytest.mark.parametrize(
    ("reference", "texts"),
    [
        ("quickstrat", ("'quickstrat'", "Did you mean 'quickstart'?", "paper/strategies")),
        ("strategies", ("'strategies'", "Did you mean 'paper/strategies'?")),
        ("nowhere.yaml", ("'nowhere.yaml'", "Known:")),
        ("./quickstart", ("'./quickstart'", "Known:")),
        (".", ("'.'", "Known:")),
        ("", ("''", "Known:")),
        ("~nobody-of-that-name/s.yaml", ("nobody-of-that-name", "Known:")),
        ("x" * 300, ("xxx", "Known:")),
        ("a\0b", ("a", "Known:")),
    ],
    ids=[
        "misspelt",
        "without its folder",
        "missing file",
        "path without suffix",
        "folder",
        "empty",
        "unknown user",
        "too long",
        "zero byte",
    ],
)
def test_a_scenario_that_does_not_exist_is_refused(reference, texts, verb, refused):
    message = refused([verb, reference])
    assert "no such scenario" in message
    assert all(text in message for text in texts), message


@pytest.mark.parametrize("text", ["world_size", "=3", " =3", ""])
def test_set_without_a_key_and_an_equals_sign_is_refused(text, refused):
    assert_helpful(
        refused(["run", "quickstart", "--set", text]), "--set", repr(text), "KEY.PATH=VALUE"
    )


@pytest.mark.parametrize(
    "value",
    ["[1", "{a: ", "2001-99-99", "!!float x", "[" * 20000],
    ids=["list", "mapping", "date", "tag", "deep"],
)
def test_set_with_a_value_that_is_not_yaml_is_refused(value, refused):
    message = refused(["run", "quickstart", "--set", f"seed={value}"])
    assert "--set seed: the value must be plain YAML" in message


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["run", "quickstart", "--frob"], ("--frob", "--help")),
        (["run", "quickstart", "--sett", "a=1"], ("--sett", "--set")),
        (["run"], ("SCENARIO", "--help")),
        (["check"], ("SCENARIO", "--help")),
        (["results", "plot"], ("Missing argument", "--help")),
        (["simulate"], ("simulate", "--help")),
        (["run", "quickstart", "--out"], ("--out",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_refused(arguments, texts, refused):
    message = refused(arguments)
    assert all(text in message for text in texts), message


def test_no_arguments_show_the_verbs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert all(verb in shown for verb in ("run", "check", "results", "list"))
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_result_folder_that_holds_something_else_is_refused_before_anything_is_simulated(
    refused, monkeypatch
):
    monkeypatch.setattr(
        importlib.import_module("simshuffle.api"), "run", lambda *_: pytest.fail("it was simulated")
    )
    message = refused(["run", "quickstart", "--out", "taken"], {"taken": "a file"})
    assert_helpful(message, "--out", "taken", "is not a folder")
    assert_helpful(
        refused(["run", "quickstart", "--out", "."], {"x": "a file"}),
        "--out",
        ".",
        "the working directory",
    )


def test_force_does_not_remove_what_is_no_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    chapter = tmp_path / "thesis" / "chapter1.tex"
    chapter.parent.mkdir()
    chapter.write_text("years of work")
    assert main(["run", "quickstart", "--out", "thesis", "--force"]) == 2
    assert "holds something else than a result" in capsys.readouterr().err
    assert chapter.read_text() == "years of work"


# --------------------------------------------------------------------------------------------- fuzz

_words = [
    "name",
    "cluster",
    "world_size",
    "workload",
    "sweep",
    "kind",
    "topology",
    "path",
    "custom",
    "abci",
    "local_shuffle",
    "1 B",
    "0.1",
]
text = st.sampled_from(_words) | st.text(max_size=8)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70),
    st.floats(),
    text,
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from([10**30, 10**400]),
)
keys = text | st.integers(0, 3) | st.none() | st.booleans()
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def assert_loads_or_refuses(values, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "s.yaml"
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    try:
        scenario = load_scenario(path)
    except ScenarioError as error:
        assert error.problems
        assert all(problem.rule for problem in error.problems)
    else:
        assert scenario.world_size >= 1


@settings(max_examples=100)
@given(values=anything)
def test_any_yaml_is_a_scenario_or_refused(tmp_path_factory, values):
    assert_loads_or_refuses(values, tmp_path_factory)


def leaves(values, path=()):
    """Key paths of a nested dict, inner and outer."""
    out = []
    for key, value in values.items():
        out.append((*path, key))
        if isinstance(value, dict) and key != "source":
            out += leaves(value, (*path, key))
    return out


WRITTEN = base()
RESOLVED = load_scenario(
    "abci-imagenet1k", {"cluster": "small-fat-tree", "world_size": 8, "workload.allreduce.rings": 1}
).to_dict()
# the size of a network is built as it is asked for, so only small numbers there
SIZES = {"levels", "arity", "hosts", "links_per_switch", "gpus", "hcas"}


def assert_mutation_loads_or_refuses(original, data, tmp_path_factory):
    values = copy.deepcopy(original)
    path = data.draw(st.sampled_from(leaves(values)), label="key")
    at = values
    for key in path[:-1]:
        at = at[key]
    if data.draw(st.booleans(), label="delete"):
        del at[path[-1]]
    else:
        new = data.draw(anything, label="value")
        at[path[-1]] = new % 5 if path[-1] in SIZES and isinstance(new, int) else new
    assert_loads_or_refuses(values, tmp_path_factory)


@settings(max_examples=100)
@given(data=st.data())
def test_a_scenario_with_one_key_changed_at_random_is_a_scenario_or_refused(tmp_path_factory, data):
    assert_mutation_loads_or_refuses(WRITTEN, data, tmp_path_factory)


@settings(max_examples=100)
@given(data=st.data())
def test_a_resolved_scenario_with_one_key_changed_at_random_is_a_scenario_or_refused(
    tmp_path_factory, data
):
    assert_mutation_loads_or_refuses(RESOLVED, data, tmp_path_factory)


@pytest.mark.parametrize(
    "value", [None, {}, "~nobody-of-that-name/y", 10**400, -1], ids=lambda v: repr(v)[:30]
)
def test_every_key_refuses_or_takes_what_it_was_not_made_for(value, tmp_path):
    broken = {}
    for path in leaves(RESOLVED):
        if path[-1] in SIZES and value == 10**400:
            continue  # the network is built as large as it is asked for
        values = copy.deepcopy(RESOLVED)
        at = values
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        try:
            load_scenario(tmp_path / "s.yaml")
        except ScenarioError:
            continue
        except Exception as error:  # noqa: BLE001
            broken[".".join(path)] = f"{type(error).__name__}: {error}"
    assert broken == {}
