"""Choose the reader for a file of another tool, and find the dumps in a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

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
from simshuffle.extensions.interop.fabrics.host_inside import HostInventory
from simshuffle.extensions.interop.fabrics.imported import (
    FabricSupplement,
    ImportedFabric,
    attribute_errors,
    fabric_error,
    read_text,
)
from simshuffle.extensions.interop.fabrics.network_fabric import fabric_of_network
from simshuffle.fabric.topology import Custom
from simshuffle.fabric.topology.graph import graph_problems

_READERS = ibnetdiscover, slurm, infragraph
_HOST_READERS = nccl_topology, nvidia_smi
_RECOGNIZER_OF_KIND = {
    "network": lambda text: ibnetdiscover.begins(text) or infragraph.begins(text),
    "routes": lfts.begins,
    "slurm": slurm.begins,
    "names": infiniband.begins,
}
FABRIC_FORMATS = (
    "output of ibnetdiscover, topology.conf or topology.yaml of Slurm, InfraGraph, networkx"
    " node-link JSON, GraphML"
)


def read_fabric(
    path: Path, supplement: FabricSupplement | None = None
) -> ImportedFabric:
    """Read a fabric from a file in any of the known formats.

    What the file holds decides its format; its suffix counts for node-link JSON and
    GraphML alone (.json, .graphml, .xml).

    Args:
        path: the file.
        supplement: facts that the file may leave out.

    Raises:
        TopologyError: the file has none of the formats, or its reader refuses it; or
            ``supplement`` has facts that a file of this format cannot leave out: names
            or hosts if ibnetdiscover did not print it, links up if it is not of Slurm,
            a bandwidth if it is node-link JSON or GraphML.
    """
    text = read_text(path)
    supplement = supplement or FabricSupplement()
    is_network_file = path.suffix.lower() in {".json", ".graphml", ".xml"}
    reader = next((reader for reader in _READERS if reader.begins(text)), None)
    if reader is not None or is_network_file:
        _check_supplement(supplement, reader, path)
    with attribute_errors(path):
        if reader is not None:
            fabric: ImportedFabric = reader.fabric_of(text, str(path), supplement)
            return fabric
        if is_network_file:
            sketch = Custom(kind="custom", path=str(path)).sketch()
            if problems := graph_problems(sketch, "fabric"):
                raise TopologyError(problems)
            return fabric_of_network(sketch, str(path))
        raise fabric_error(
            0,
            f"must be one of: {FABRIC_FORMATS}",
            "something else",
            "Name such a file.",
        )


def _check_supplement(
    supplement: FabricSupplement, reader: ModuleType | None, path: Path
) -> None:
    """Refuse facts that a file of this format cannot leave out.

    Args:
        supplement: the facts.
        reader: the reader for the file; None for node-link JSON and GraphML.
        path: the file.

    Raises:
        TopologyError: there is such a fact.
    """
    rule = "is only for output of ibnetdiscover"
    remedy = "Leave the option out."
    if supplement.names and reader is not ibnetdiscover:
        option = "--names"
    elif supplement.hosts and reader is not ibnetdiscover:
        option = "--slurm"
    elif supplement.links_up is not None and reader is not slurm:
        option = "--links-up"
        rule = "is only for a topology of Slurm"
    elif supplement.bandwidth is not None and reader is None:
        option = "--link-bandwidth"
        rule = "is not for node-link JSON or GraphML"
        remedy = (
            "Leave the option out, and write the bandwidth of each link in the file."
        )
    else:
        return
    raise TopologyError(Problem(option, rule, str(path), remedy), "command line")


def read_host(path: Path) -> HostInventory | None:
    """Return the GPUs and ports of the host that a file describes; None if it describes
    no host.

    Raises:
        TopologyError: the file cannot be read, is cut, or describes no host with a GPU.
    """
    text = read_text(path)
    for reader in _HOST_READERS:
        if reader.begins(text):
            with attribute_errors(path):
                host: HostInventory = reader.host_of(text, path.name)
                return host
    return None


def is_fabric(path: Path) -> bool:
    """Return whether one of the readers of other tools' files is for a file; node-link
    JSON and GraphML have none.

    Raises:
        TopologyError: the file cannot be read.
    """
    text = read_text(path)
    return any(reader.begins(text) for reader in _READERS)


@dataclass(frozen=True)
class DumpFiles:
    """The files of a folder by what they hold; None where the folder has no such file."""

    network: Path | None = None
    routes: Path | None = None  # forwarding tables
    names: Path | None = None  # a node-name map
    slurm: Path | None = None  # Slurm's topology, beside a network
    # names of files of no kind, among them files of hosts, and of folders
    unread: list[str] = field(default_factory=list)

    @property
    def files(self) -> dict[str, Path]:
        """The files that are present, by their kinds: 'network', 'routes', 'slurm' and
        'names'.
        """
        paths = {kind: getattr(self, kind) for kind in _RECOGNIZER_OF_KIND}
        return {kind: path for kind, path in paths.items() if path is not None}


def find_dumps(folder: Path) -> DumpFiles:
    """Find the dumps in a folder by what its files hold, not its subfolders. Slurm's
    topology is the network where there is no other.

    Node-link JSON and GraphML are not found: they count as unread.

    Raises:
        TopologyError: two files are of one kind, or no file holds a network.
    """
    path_of_kind: dict[str, Path] = {}
    unread = []
    for path in sorted(folder.iterdir()):
        kind = _kind_of_file(path)
        if kind is None:
            unread.append(path.name)
        elif kind in path_of_kind:
            rule = "must have one file of each kind"
            names = f"{path_of_kind[kind].name} and {path.name}"
            with attribute_errors(folder):
                raise fabric_error(0, rule, names, "Name one of them by its option.")
        else:
            path_of_kind[kind] = path
    if "network" not in path_of_kind:
        if "slurm" not in path_of_kind:
            rule = "must hold the dump of a network"
            remedy = "Add a file that ibnetdiscover printed."
            raise TopologyError(Problem("", rule, "none", remedy), str(folder))
        path_of_kind["network"] = path_of_kind.pop("slurm")
    return DumpFiles(unread=unread, **path_of_kind)


def _kind_of_file(path: Path) -> str | None:
    """Return the kind of dump that a file holds; None for a folder, a file of another
    kind, or one that cannot be read.
    """
    try:
        text = read_text(path)
    except TopologyError:  # a folder, or no text
        return None
    recognizers = _RECOGNIZER_OF_KIND.items()
    return next((kind for kind, begins in recognizers if begins(text)), None)
