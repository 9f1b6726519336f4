"""Which reader a file is for; and what lies in a folder of dumps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from simshuffle.errors import Problem, TopologyError
from simshuffle.extensions.interop.fabrics import (
    ibnetdiscover,
    infiniband,
    infragraph,
    lfts,
    nccl_topology,
    nvidia_smi,
    slurm,
)
from simshuffle.extensions.interop.fabrics.host_inside import HostInside
from simshuffle.extensions.interop.fabrics.imported import (
    ImportedFabric,
    Missing,
    errors_of,
    of_network,
    read_text,
    refuse,
)
from simshuffle.fabric.topology import Custom
from simshuffle.fabric.topology.graph import graph_problems

_READERS = ibnetdiscover, slurm, infragraph
_OF_HOSTS = nccl_topology, nvidia_smi
_KINDS = {
    "network": lambda text: ibnetdiscover.begins(text) or infragraph.begins(text),
    "routes": lfts.begins,
    "slurm": slurm.begins,
    "names": infiniband.begins,
}
KNOWN = (
    "what ibnetdiscover prints, topology.conf or topology.yaml of Slurm, InfraGraph, networkx"
    " node-link JSON, GraphML"
)


def read_fabric(path: Path, missing: Missing | None = None) -> ImportedFabric:
    """The fabric of a file, whichever of the known formats it has; ``missing`` is for what the file
    does not say.

    Raises:
        TopologyError: it has none of them, or its reader refuses it.
    """
    text, missing = read_text(path), missing or Missing()
    for option, given in (("--names", missing.names), ("--slurm", missing.hosts)):
        if given and not ibnetdiscover.begins(text):
            rule, remedy = "is for what ibnetdiscover printed", "Leave it out."
            raise TopologyError(Problem(option, rule, str(path), remedy), "command line")
    with errors_of(path):
        for reader in _READERS:
            if reader.begins(text):
                fabric: ImportedFabric = reader.fabric_of(text, str(path), missing)
                return fabric
        if path.suffix in {".json", ".graphml", ".xml"}:
            sketch = Custom(kind="custom", path=str(path)).sketch()
            if problems := graph_problems(sketch, "fabric"):
                raise TopologyError(problems)
            return of_network(sketch, str(path))
        raise refuse(0, f"must be one of: {KNOWN}", "something else", "Name such a file.")


def read_host(path: Path) -> HostInside | None:
    """What a file shows of the inside of a host; None if it is of something else. Raises a
    TopologyError if it cannot be read, or is cut."""
    text = read_text(path)
    for reader in _OF_HOSTS:
        if reader.begins(text):
            with errors_of(path):
                host: HostInside = reader.host_of(text, path.name)
                return host
    return None


def is_fabric(path: Path) -> bool:
    """Whether one of the readers of other tools' files is for a file; raises as `read_fabric`."""
    text = read_text(path)
    return any(reader.begins(text) for reader in _READERS)


@dataclass(frozen=True)
class Dumps:
    """The files of a folder, each None if there is none of its kind."""

    network: Path | None = None
    routes: Path | None = None  # forwarding tables
    names: Path | None = None  # a node-name map
    slurm: Path | None = None  # Slurm's topology, beside a network
    others: list[str] = field(default_factory=list)  # names of those of no kind

    @property
    def files(self) -> dict[str, Path]:
        """Those that there are by their kinds."""
        paths = {kind: getattr(self, kind) for kind in _KINDS}
        return {kind: path for kind, path in paths.items() if path is not None}


def dumps_in(folder: Path) -> Dumps:
    """The dumps in a folder. The topology of Slurm is the network where there is no other.

    Raises:
        TopologyError: there are two of a kind, or no network.
    """
    found: dict[str, Path] = {}
    others = []
    for path in sorted(folder.iterdir()):
        kind = _kind(path)
        if kind is None:
            others.append(path.name)
        elif kind in found:
            rule, names = "must have one file of each kind", f"{found[kind].name} and {path.name}"
            with errors_of(folder):
                raise refuse(0, rule, names, "Name one of them by its option.")
        else:
            found[kind] = path
    if "network" not in found:
        if "slurm" not in found:
            rule, remedy = "must hold the dump of a network", "Add what ibnetdiscover printed."
            raise TopologyError(Problem("", rule, "none", remedy), str(folder))
        found["network"] = found.pop("slurm")
    return Dumps(others=others, **found)


def _kind(path: Path) -> str | None:
    try:
        text = read_text(path)
    except TopologyError:  # a folder, or no text
        return None
    return next((kind for kind, begins in _KINDS.items() if begins(text)), None)
