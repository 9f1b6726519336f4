"""Every reader of simshuffle: valid examples of what it reads, how odd ones are made of them, and
how it is called."""

import gzip
import io
import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import yaml
from rich.console import Console

from simshuffle.extensions.calibration.validation.predict import tasks_of_variants
from simshuffle.extensions.calibration.validation.table import read_rows
from simshuffle.extensions.doctor.records.chakra_schema import ChakraNode, StorageOperation
from simshuffle.extensions.doctor.records.reading import read as read_record
from simshuffle.extensions.interop.exports.chakra import encode_trace
from simshuffle.extensions.interop.fabrics import ibsim, infragraph
from simshuffle.extensions.interop.fabrics.imported import FabricSupplement
from simshuffle.extensions.interop.fabrics.lfts import parse_tables, read_tables
from simshuffle.extensions.interop.fabrics.network_fabric import format_graphml
from simshuffle.extensions.interop.fabrics.reading import read_fabric, read_host
from simshuffle.extensions.interop.import_command import format_machine_files
from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.case import read_case
from simshuffle.fabric.network.replay import replay
from simshuffle.fabric.routing import Fabric, ForwardingTables
from simshuffle.fabric.routing.forwarding_tables import TableRouter
from simshuffle.fabric.topology import Custom
from simshuffle.fabric.topology.graph import graph_problems
from simshuffle.job.derived_values import derive_values
from simshuffle.job.plan.effort import check_size
from simshuffle.job.scenario.calibrated import Fragment
from simshuffle.job.scenario.options import assignments, scenarios_of
from simshuffle.job.scenario.scenario import all_runs
from simshuffle.job.verdict import tables, verdict
from simshuffle.spec.library import read_yaml, shipped_folder
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.request import request as loader_request
from simshuffle.study.registry import read_folder
from simshuffle.workload.exchange import EpochContext
from simshuffle.workload.exchange.recording import write_plans
from simshuffle.workload.orders.order import COLUMNS
from tests import small
from tests.calibrated import calibrate
from tests.examples import PACE
from tests.fuzz import damage
from tests.fuzz.mutation import changed_bytes, changed_lines, changed_text, changed_values, odd
from tests.fuzz.results import KINDS, made
from tests.units.test_calibrate import DATA
from tests.units.test_fabric_dialects import IBSIM, as_report
from tests.units.test_host_inside import dump, matrix, ndv4
from tests.units.test_measurement_dialects import (
    A2A,
    CSV,
    OLD,
    SUMMARY_ALONE,
    ior,
    ior_json,
    mdtest,
    nccl,
)

PLAIN = {
    **{"name": "plain", "cluster": "small-fat-tree", "world_size": 4, "epochs": 1, "seed": 1},
    "workload": {
        "model": "resnet50",
        "dataset": small.PLAIN["workload.dataset"]
        | {"num_samples": 160, "sample_size": {"mean": "100 kB", "std": "1 kB"}},
        "local_batch_size": 8,
        "exchange": {"kind": "partial_local_shuffle", "exchange_fraction": 0.5},
        "allreduce": {"kind": "ring", "rings": 1, **PACE},
        "loader": {"workers": 2, "prefetch": 4},
        "jitter": {"compute": 0.1, "read": 0},
    },
    "network": {"kind": "fluid"},
    "sweep": {"world_size": [2, 4], "workload.exchange": ["local_shuffle", "global_shuffle"]},
}
STAR = small.PLAIN["cluster.topology"] | {"hosts": 4, "cable_latency": "1 us"}
SETTINGS = (
    *("world_size=2", "epochs=2", "seed=3", "cluster=abci", "cluster.host.cores=4"),
    *("workload.exchange=local_shuffle", "workload.exchange.exchange_fraction=0.1"),
    *("sweep={workload.exchange: [local_shuffle]}", "cluster.ssd.latency=20 us", "sweep={}"),
    *("workload.model=vgg16", "network={kind: packet, mtu: 4096 B}", "include=[]"),
    *("cluster.parallel_file_system.client_bandwidth={points: {1: 2 GB/s, 16: 1 GB/s}}",),
)


class Input(NamedTuple):
    """What a reader is given: files of its folder (None: one that is missing), and arguments."""

    files: Mapping[str, bytes | None] = {}
    arguments: tuple[str, ...] = ()


class Reader(NamedTuple):
    """A reader.

    Attributes:
        prepare: writes the files that are the same for each input into a folder.
        draw: an odd input, for a folder that was prepared.
        read: reads it.
        share: inputs, of those of the reader that gets most.
    """

    prepare: Callable[[Path], object]
    draw: Callable[[random.Random, Path], Input]
    read: Callable[[Path, tuple[str, ...]], object]
    share: float = 1.0


def nothing(_: Path) -> None:
    """There is nothing to prepare."""


# ---------------------------------------------------------------------------------------- scenarios


def _yaml(values: Any, rng: random.Random) -> bytes:
    """Values, or their text, made odd."""
    if rng.random() < 0.75:
        text = yaml.safe_dump(changed_values(values, rng), allow_unicode=True, sort_keys=False)
        return text.encode("utf-8", "replace")
    text = yaml.safe_dump(values, sort_keys=False)
    change = rng.choice((changed_text, changed_lines))
    content = change(text, rng).encode("utf-8", "surrogateescape")
    return changed_bytes(content, rng) if rng.random() < 0.2 else content


def _check(folder: Path, arguments: tuple[str, ...]) -> None:
    """What `simshuffle check` does."""
    scenarios = scenarios_of(str(folder / "s.yaml"), assignments(arguments))
    runs = all_runs(scenarios)
    for single in runs.values():
        check_size(single)
    for single in scenarios:
        single.to_yaml()
    for single in list(runs.values())[:4]:
        derive_values(single)
        tables([verdict(single, "run")])


def _scenario(rng: random.Random, _: Path) -> Input:
    return Input({"s.yaml": _yaml(PLAIN, rng)})


def _plain(folder: Path) -> None:
    (folder / "s.yaml").write_text(yaml.safe_dump(PLAIN))


def _set(rng: random.Random, _: Path) -> Input:
    key, _equals, value = rng.choice(SETTINGS).partition("=")
    match rng.randrange(4):
        case 0:
            text = f"{key}={odd(rng)}"
        case 1:
            text = f"{changed_text(key, rng)}={value}"
        case 2:
            other = rng.choice(SETTINGS).partition("=")
            text = f"{key}={other[2]}"
        case _:
            text = f"{key}={changed_text(value, rng)}"
    return Input(arguments=(text, *rng.sample(SETTINGS, rng.choice((0, 0, 1)))))


def _with_cluster(folder: Path) -> None:
    (folder / "s.yaml").write_text(yaml.safe_dump(PLAIN | {"cluster": "./c.yaml"}))


def _cluster(rng: random.Random, _: Path) -> Input:
    values = dict(_shipped("topologies", rng.choice(("small-fat-tree", "abci"))))
    if rng.random() < 0.5:
        values["topology"] = STAR
    return Input({"c.yaml": _yaml(values, rng)})


@cache
def _shipped(folder: str, name: str) -> Any:
    (values,) = read_yaml(shipped_folder(folder) / f"{name}.yaml")
    return values


def _with_fragment(folder: Path) -> None:
    (folder / "s.yaml").write_text(yaml.safe_dump(PLAIN | {"include": ["f.yaml"], "sweep": {}}))
    (folder / "of").mkdir()
    for name in ("nccl-2-hosts.txt", "ior-4-hosts.txt", "epochs-vgg16.csv"):
        text = calibrate([DATA / name]).to_yaml()
        (folder / "of" / f"{name}.yaml").write_text(text)


def _fragment(rng: random.Random, folder: Path) -> Input:
    (values,) = read_yaml(rng.choice(sorted((folder / "of").iterdir())))
    return Input({"f.yaml": _yaml(values, rng)})


# --------------------------------------------------------------------------------- graphs and cases


def _network() -> Any:
    graph = nx.MultiGraph()
    graph.add_node("s", kind="switch", tier="leaf", latency="90 ns")
    for host in ("h0", "h1"):
        graph.add_node(host, kind="host")
        graph.add_edge(host, "s", bandwidth="10 GB/s", latency="100 ns", links=2)
    return graph


def _json_graph(rng: random.Random, _: Path) -> Input:
    values = nx.node_link_data(_network(), edges="links")
    content = json.dumps(changed_values(values, rng)).encode()
    return Input({"net.json": changed_bytes(content, rng) if rng.random() < 0.2 else content})


def _graphml(rng: random.Random, _: Path) -> Input:
    text = "\n".join(nx.generate_graphml(_network()))
    if rng.random() < 0.2:
        text = f'<?xml version="1.0" encoding="{odd(rng)}"?>\n{text}'
    text = rng.choice((changed_text, changed_lines))(text.replace("><", ">\n<"), rng)
    content = text.encode("utf-8", "surrogateescape")
    return Input({"net.graphml": changed_bytes(content, rng) if rng.random() < 0.2 else content})


def _graph(name: str) -> Callable[[Path, tuple[str, ...]], object]:
    def read(folder: Path, _: tuple[str, ...]) -> int:
        graph = Custom(kind="custom", path=str(folder / name)).graph()
        return 2 if graph_problems(graph, "net") else 0

    return read


CASE = {
    "name": "two and one back",
    "links": {"name": ["up", "down"], "capacity": [12.5e9, 12.5e9], "latency": [1e-6, 1e-6]},
    "flows": {
        "size": [1e6, 2e6, 3e6],
        "start": [0, 1e-5, 0],
        "route": [[0], [0], [1]],
        "after": [[], [], [0, 1]],
        "end": [1e-4, 2e-4, 3e-4],
    },
}


def _case(rng: random.Random, _: Path) -> Input:
    content = json.dumps(changed_values(CASE, rng)).encode()
    return Input({"case.json": changed_bytes(content, rng) if rng.random() < 0.2 else content})


def _replay(folder: Path, _: tuple[str, ...]) -> None:
    replay(read_case(folder / "case.json"), Fluid())


def _with_plans(folder: Path) -> None:
    from tests.units.test_accuracy import recorded

    exchange = {"kind": "recorded", "path": "plans.npz", "exchange_fraction": 0.4}
    workload = PLAIN["workload"] | {"exchange": exchange}  # type: ignore[operator]
    write_plans(folder / "whole.npz", recorded(4, 100, 0.4, 2))
    (folder / "s.yaml").write_text(
        yaml.safe_dump(PLAIN | {"workload": workload, "sweep": {}, "epochs": 2})
    )


def _plans(rng: random.Random, folder: Path) -> Input:
    whole = (folder / "whole.npz").read_bytes()
    if rng.random() < 0.3:
        return Input({"plans.npz": changed_bytes(whole, rng)})
    with np.load(io.BytesIO(whole)) as file:
        arrays = dict(file)
    for name in rng.sample(sorted(arrays), rng.choice((1, 1, 2))):
        array = arrays[name]
        match rng.randrange(7):
            case 0:
                del arrays[name]
            case 1:
                arrays[name] = array.reshape(rng.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1))))
            case 2:
                arrays[name] = array[: rng.randrange(len(array) + 1)]
            case 3 if array.dtype.kind in "iu":
                arrays[name] = array.astype(rng.choice(("f8", "i8", "u1", "U5", "?", "i2", "c8")))
            case 4:
                arrays[name] = np.concatenate([array, array])
            case _ if array.dtype.kind in "iu" and array.size:
                spoilt = array.copy()
                ends = np.iinfo(array.dtype)
                for _ in range(rng.choice((1, 1, 3))):
                    at = rng.randrange(array.size)
                    spoilt.flat[at] = rng.choice((0, 1, 2, 5, 255, ends.max, ends.min))
                arrays[name] = spoilt
            case _:
                arrays[name] = np.array([str(odd(rng)) for _ in range(5)])
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return Input({"plans.npz": out.getvalue()})


def _replayed(folder: Path, arguments: tuple[str, ...]) -> None:
    """A scenario with them, and their exchange."""
    (scenario,) = scenarios_of(str(folder / "s.yaml"), assignments(arguments))
    exchange: Any = scenario.workload.exchange
    rng = np.random.default_rng(0)
    owner = exchange.first_owner(160, 4, rng)
    for epoch in (1, 2):
        shards = exchange.shards(owner, 4, rng)
        context = EpochContext(shards, batch_size=8, iterations=5, epoch=epoch, rng=rng)
        owner = exchange.plan(context).apply(owner)


# --------------------------------------------------------------------------------------------- logs

LOGS = (
    *("nccl-2-hosts.txt", "nccl-1-host.txt", "nccl-2-hosts.json", "osu-latency.txt", "osu-bw.txt"),
    *("osu-alltoall.txt", "osu-allreduce.txt", "ior-4-hosts.txt", "mdtest-32-tasks.txt"),
    "epochs-vgg16.csv",
)
MADE_LOGS = {
    "ior.json": ior_json(),
    "ior.csv": CSV,
    "ior-summary.txt": SUMMARY_ALONE.format(reord=1),
    "ior-twice.txt": ior() + ior("ior -r -C -Q 2", nodes=4, write=None),
    "nccl-unnamed.txt": nccl(**A2A, inside="N/A"),
    "nccl-cut-list.txt": nccl(listed=[7]),
    "nccl-old.txt": nccl(head=OLD, group=""),
    "mdtest-1.9.txt": mdtest(),
}


def _log(rng: random.Random, _: Path) -> Input:
    name = rng.choice((*LOGS, *MADE_LOGS))
    text = MADE_LOGS.get(name) or (DATA / name).read_text()
    if name.endswith(".json") and rng.random() < 0.7:
        text = json.dumps(changed_values(json.loads(text), rng))
    else:
        text = changed_lines(text, rng)
    content = text.encode("utf-8", "surrogateescape")
    return Input({"log": changed_bytes(content, rng) if rng.random() < 0.1 else content}, (name,))


def _calibrate(folder: Path, arguments: tuple[str, ...]) -> None:
    ranks = {"ranks": 8, "hosts": 2} if arguments[0].startswith(("osu-all", "nccl-cut")) else {}
    found = calibrate([folder / "log"], **ranks)
    found.fragments()
    found.as_json()


def _rows(rng: random.Random, _: Path) -> Input:
    name = rng.choice(("collectives", "storage", "slides", "abci_2020", "resnet50"))
    lines = (shipped_folder("validation") / f"{name}.csv").read_text().splitlines()
    text = "\n".join([lines[0], *rng.sample(lines[1:], min(3, len(lines) - 1))])
    content = changed_lines(text, rng).encode("utf-8", "surrogateescape")
    return Input({"own.csv": changed_bytes(content, rng) if rng.random() < 0.1 else content})


def _validate(folder: Path, _: tuple[str, ...]) -> None:
    for row in read_rows(folder):
        tasks_of_variants(row)


# ------------------------------------------------------------------------------------------ records


@cache
def _traces() -> dict[str, Any]:
    """Of each file, whose name says its kind, what it holds: values of JSON, text or bytes."""
    from tests.units import test_records as of

    nodes = [
        ChakraNode(1, "read 0", 8, (), 0.5, {"is_cpu_op": 1}, StorageOperation(3, 4096)),
        *(ChakraNode(2, "forward", 4, (1,), 1.0), ChakraNode(3, "batch", 9, (2,), 2.0)),
        ChakraNode(4, "gradients", 7, (2,), 0.0, {"comm_size": 1000}),
    ]
    return {
        "kineto.json": of.trace(),
        "kineto-cpu.json": of.trace(of.ON_CPU, deviceProperties=[]),
        "traceml.json": of.traceml(),
        "ray.json": [{"iter_total_blocked_s": 2.0, "iter_user_s": 6.0, "iter_batches_total": 4}],
        "ray.txt": of.RAY + of.TOLD,
        "trace.0.et": encode_trace(nodes),
        **{f"dlio/{name}": content for name, content in of.DLIO.items()},
    }


def _with_folder(folder: Path) -> None:
    (folder / "dlio" / ".hydra").mkdir(parents=True)


def _trace(rng: random.Random, _: Path) -> Input:
    name = rng.choice(list(_traces()))
    files = {name: _traces()[name]}
    if name.startswith("dlio"):
        files |= {each: of for each, of in _traces().items() if each.startswith("dlio")}
    content = {each: _plainly(of) for each, of in files.items()}
    if isinstance(files[name], str):
        text = rng.choice((changed_text, changed_lines))(files[name], rng)
        content[name] = text.encode("utf-8", "surrogateescape")
    elif not isinstance(files[name], bytes):
        content[name] = json.dumps(changed_values(files[name], rng)).encode("utf-8", "replace")
    if isinstance(files[name], bytes) or rng.random() < 0.2:
        content[name] = changed_bytes(content[name], rng)
    if rng.random() < 0.2:
        content[name] = gzip.compress(content[name], mtime=0)[: rng.choice((None, -1, -40))]
    return Input(content, (name.partition("/")[0],))


def _plainly(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def _recorded(folder: Path, arguments: tuple[str, ...]) -> None:
    """A record that was read can be kept."""
    read_record(folder / arguments[0]).write(folder / "kept.parquet")
    read_record(folder / "kept.parquet")


def _kept_record(folder: Path) -> None:
    from tests.units.test_records import small

    small().write(folder / "whole.parquet")


def _parquet(rng: random.Random, folder: Path) -> Input:
    content = changed_bytes((folder / "whole.parquet").read_bytes(), rng)
    return Input({"r.parquet": content}, ("r.parquet",))


# ------------------------------------------------------------------------------------------ studies


def _study(rng: random.Random, _: Path) -> Input:
    return Input({"s.yaml": _yaml(_shipped("studies", rng.choice(("quick", "fractions"))), rng)})


def _train(folder: Path, arguments: tuple[str, ...]) -> None:

    from simshuffle.train.study import load_study

    load_study(str(folder / "s.yaml"), assignments(arguments)).to_yaml()


def _filtering_study(rng: random.Random, _: Path) -> Input:
    return Input({"s.yaml": _yaml(_shipped("studies", "data-optimised-digits"), rng)})


def _filter(folder: Path, arguments: tuple[str, ...]) -> None:
    from simshuffle.extensions.learning.filtering.record import load_study

    load_study(str(folder / "s.yaml"), assignments(arguments)).to_yaml()


# ---------------------------------------------------------------------------------- result folders


def _order(rng: random.Random, _: Path) -> Input:
    """The recorded order of two ranks."""
    rows = [(epoch, rank, 0, at, 2 * at + rank) for epoch, rank, at in np.ndindex(2, 2, 8)]
    lines = [",".join(map(str, row)) for row in [COLUMNS, *rows]]
    text = changed_lines("\n".join(lines) + "\n", rng)
    content = text.encode("utf-8", "surrogateescape")
    return Input({"order.csv": changed_bytes(content, rng) if rng.random() < 0.1 else content})


def _counted(folder: Path, _: tuple[str, ...]) -> None:
    options = LoaderOptions(check=folder / "order.csv", batch_size=2)
    (cell,) = loader_request(options).values
    cell.run(lambda share: None)


def _result(kind: str) -> Reader:
    def prepare(folder: Path) -> None:
        made(kind, folder).rename(folder / "result")

    def draw(rng: random.Random, folder: Path) -> Input:
        found = damage.some_damage(folder / "result", rng)
        return Input({f"result/{found.file}": found.content}, (found.what,))

    return Reader(prepare, draw, _shown, 0.05)


def _shown(folder: Path, _: tuple[str, ...]) -> None:
    """A result drawn, written for a terminal, and as JSON."""
    result = read_folder(folder / "result")
    result.draw(folder / "drawn")
    console = Console(file=io.StringIO(), width=100)
    for part in result.parts():
        console.print(part)
    json.dumps(result.as_json(), allow_nan=False, default=lambda value: value.item())


# ------------------------------------------------------------------------------------------ fabrics

FABRICS = DATA.parent / "fabrics"
TOPOLOGY_CONF = (
    "SwitchName=a Nodes=n[0-3,07]\nSwitchName=b Nodes=m1,m2\nSwitchName=c Switches=[a-b]\n"
)
TOPOLOGY_YAML = [
    {"topology": "flat", "flat": True},
    {
        "topology": "tree",
        "cluster_default": True,
        "tree": {
            "switches": [
                {"switch": "top", "children": "s[0-1]"},
                {"switch": "s0", "nodes": "n[0-3]"},
                {"switch": "s1", "nodes": "m[0-3]"},
            ]
        },
    },
]


@cache
def _rack() -> Any:
    return read_fabric(FABRICS / "rack.ibnet")


@cache
def _report() -> str:
    return as_report((FABRICS / "rack.ibnet").read_text())


def _fabric(rng: random.Random, _: Path) -> Input:
    kind = rng.choice(("ibnetdiscover", "report", "ibsim", "conf", "yaml", "infragraph"))
    if kind == "yaml":
        return Input({"net.yaml": _yaml(TOPOLOGY_YAML, rng)}, ("net.yaml",))
    if kind == "infragraph" and rng.random() < 0.7:
        values = changed_values(json.loads(infragraph.format_infrastructure(_rack())), rng)
        return Input({"net.json": json.dumps(values).encode("utf-8", "replace")}, ("net.json",))
    text = {
        "ibnetdiscover": (FABRICS / "rack.ibnet").read_text(),
        "report": _report(),
        "ibsim": IBSIM,
        "conf": TOPOLOGY_CONF,
        "infragraph": infragraph.format_infrastructure(_rack()),
    }[kind]
    content = rng.choice((changed_text, changed_lines))(text, rng).encode(
        "utf-8", "surrogateescape"
    )
    content = changed_bytes(content, rng) if rng.random() < 0.1 else content
    return Input({"net.txt": content}, ("net.txt",))


def _imported(folder: Path, arguments: tuple[str, ...]) -> None:
    """What `simshuffle machine import` and `export` do."""
    fabric = read_fabric(folder / arguments[0], FabricSupplement(bandwidth=1e9))
    fabric.counts()
    "".join(map(str, fabric.slow_cables))
    format_machine_files("m.yaml", "m", fabric)
    for write in (ibsim.format_net_file, infragraph.format_infrastructure, format_graphml):
        write(fabric)


def _host(rng: random.Random, _: Path) -> Input:
    text = rng.choice((matrix, ndv4, dump))()
    text = rng.choice((changed_text, changed_lines))(text, rng)
    content = text.encode("utf-8", "surrogateescape")
    return Input({"host": changed_bytes(content, rng) if rng.random() < 0.1 else content})


def _inside(folder: Path, _: tuple[str, ...]) -> None:
    if (host := read_host(folder / "host")) is not None:
        Fragment.model_validate(yaml.safe_load(host.to_yaml()))


def _dump(rng: random.Random, _: Path) -> Input:
    dump = (FABRICS / "rack-lfts.dump").read_text()
    if rng.random() < 0.5:
        tables = json.loads(parse_tables(dump, "dump", _rack()).to_json())
        text = json.dumps(changed_values(tables, rng))
        return Input({"t.json": text.encode("utf-8", "replace")}, ("t.json",))
    text = rng.choice((changed_text, changed_lines))(dump, rng)
    return Input({"dump": text.encode("utf-8", "surrogateescape")}, ("dump",))


def _routed(folder: Path, arguments: tuple[str, ...]) -> None:
    """Tables as they are dumped, or as they are kept."""
    path, fabric = folder / arguments[0], Fabric(_rack().sketch())
    if path.suffix == ".json":
        router = ForwardingTables(path=str(path)).router(fabric, 0)
    else:
        router = TableRouter(fabric, read_tables(path, _rack()), "dump")
    hosts = np.flatnonzero([fabric.cabling.kinds[node] == "host" for node in _owners(fabric)])
    ends = hosts.astype(np.int32)
    router.routes(np.repeat(ends, len(ends)), np.tile(ends, len(ends)))


def _owners(fabric: Fabric) -> list[int]:
    return fabric.links.dst_node[fabric.eject_link].tolist()


READERS = {
    "fabric": Reader(nothing, _fabric, _imported),
    "inside of a host": Reader(nothing, _host, _inside),
    "forwarding tables": Reader(nothing, _dump, _routed),
    "scenario": Reader(nothing, _scenario, _check),
    "--set": Reader(_plain, _set, _check),
    "topology": Reader(_with_cluster, _cluster, _check),
    "fragment": Reader(_with_fragment, _fragment, _check),
    "graph, JSON": Reader(nothing, _json_graph, _graph("net.json")),
    "graph, GraphML": Reader(nothing, _graphml, _graph("net.graphml")),
    "replay case": Reader(nothing, _case, _replay),
    "recorded plans": Reader(_with_plans, _plans, _replayed),
    "calibration log": Reader(nothing, _log, _calibrate),
    "trace of a training": Reader(_with_folder, _trace, _recorded),
    "record of a training": Reader(_kept_record, _parquet, _recorded),
    "validation rows": Reader(nothing, _rows, _validate),
    "recorded order": Reader(nothing, _order, _counted),
    **{f"result of {kind}": _result(kind) for kind in KINDS},
}
if "data_optimised" in KINDS:  # torch is there
    READERS |= {
        "training study": Reader(nothing, _study, _train),
        "filtering study": Reader(nothing, _filtering_study, _filter),
    }
