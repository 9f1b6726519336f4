"""Bad input: exit status 2, a message with the path of the key, what was given and what to do, and
nothing written."""

import copy
import importlib
import json
import re

import networkx as nx
import pytest
import yaml

from simshuffle.cli import main
from simshuffle.errors import ScenarioError
from simshuffle.scenario.scenario import load_scenario
from simshuffle.spec.library import shipped

REMEDY = re.compile(
    r"Did you mean|Known:|Add|Write|Use|Give|Name|Put|Set|Save|See|Check|Correct|Indent|For"
    r" example|Lower|Mark|Connect|Quote"
)


def base():
    """A small valid scenario, as plain values."""
    values = yaml.safe_load((shipped("scenarios") / "quickstart.yaml").read_text())
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


def assert_helpful(message, key, given, *more):
    """One of the message's lines names the key, shows the value, and says what to do."""
    lines = [line for line in message.splitlines() if f"{key}:" in line]
    assert lines, f"no line about {key!r} in:\n{message}"
    (line,) = lines[:1]
    for text in (given, *more):
        assert text in line
    # expected values of a quantity are a remedy too
    assert REMEDY.search(line) or "such as" in line, f"no remedy in: {line}"


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
    cluster = yaml.safe_load((shipped("topologies") / "small-fat-tree.yaml").read_text())
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


def test_the_custom_topology_that_the_others_are_made_from_is_valid(here, capsys):
    for name, content in files_of(network()).items():
        (here / name).write_text(content)
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
    "a binary file": (bytes(range(256)), ("UTF-8", "other bytes", "Save it")),
    "zero bytes": (b"\x00\x01", ("must be YAML",)),
    "an endless nesting": ("[" * 20000, ("within one another",)),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_scenario_is_refused(case, refused):
    content, texts = FILES[case]
    message = refused(["run", "s.yaml"], {"s.yaml": content})
    assert "s.yaml" in message.splitlines()[0]
    assert all(text in message for text in texts), message


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


def test_no_arguments_show_the_verbs(here, capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert all(verb in shown for verb in ("run", "check", "results", "list"))
    assert "Traceback" not in shown
    assert list(here.iterdir()) == []


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


def leaves(values, path=()):
    """Key paths of a nested dict, inner and outer."""
    out = []
    for key, value in values.items():
        out.append((*path, key))
        if isinstance(value, dict) and key != "source":
            out += leaves(value, (*path, key))
    return out


RESOLVED = load_scenario(
    "abci-imagenet1k", {"cluster": "small-fat-tree", "world_size": 8, "workload.allreduce.rings": 1}
).to_dict()
# the size of a network is built as it is asked for, so only small numbers there
SIZES = {"levels", "arity", "hosts", "links_per_switch", "gpus", "hcas"}


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
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(values))
        try:
            load_scenario(tmp_path / "s.yaml")
        except ScenarioError:
            continue
        except Exception as error:  # noqa: BLE001
            broken[".".join(path)] = f"{type(error).__name__}: {error}"
    assert broken == {}
