"""Which reader a file is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabrics import ibnetdiscover, infragraph, slurm
from simshuffle.fabrics.imported import ImportedFabric, Missing, read_text
from simshuffle.fabrics.network import of_network
from simshuffle.topology.custom import Custom
from simshuffle.topology.graph import graph_problems

_Reader = tuple[Callable[[str], bool], Callable[[str, str, Missing], ImportedFabric]]
_READERS: list[_Reader] = [
    (reader.begins, reader.fabric_of) for reader in (ibnetdiscover, slurm, infragraph)
]
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
    text = read_text(path)
    given = {"--names": missing and missing.names, "--slurm": missing and missing.hosts}
    for option in [option for option, of in given.items() if of]:
        if not ibnetdiscover.begins(text):
            rule, remedy = "is for what ibnetdiscover printed", "Leave it out."
            raise TopologyError(Problem(option, rule, str(path), remedy), "command line")
    for begins, fabric_of in _READERS:
        if begins(text):
            return fabric_of(text, str(path), missing or Missing())
    if path.suffix in {".json", ".graphml", ".xml"}:
        sketch = Custom(kind="custom", path=str(path)).sketch()
        if problems := graph_problems(sketch, "fabric"):
            raise TopologyError(problems, str(path))
        return of_network(sketch, str(path))
    problem = Problem("", f"must be one of: {KNOWN}", "something else", "Name such a file.")
    raise TopologyError(problem, str(path))


def is_fabric(path: Path) -> bool:
    """Whether one of the readers of other tools' files is for a file; raises as `read_fabric`."""
    text = read_text(path)
    return any(begins(text) for begins, _ in _READERS)
