"""What lies in a folder of dumps: the network and all that is known of it, told by what is in the
files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabrics import ibnetdiscover, infragraph, lfts, names, slurm
from simshuffle.fabrics.imported import read_text

_KINDS: dict[str, Callable[[str], bool]] = {
    "network": lambda text: ibnetdiscover.begins(text) or infragraph.begins(text),
    "routes": lfts.begins,
    "slurm": slurm.begins,
    "names": names.begins,
}


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
            rule, remedy = "must have one file of each kind", "Name one of them by its option."
            problem = Problem("", rule, f"{found[kind].name} and {path.name}", remedy)
            raise TopologyError(problem, str(folder))
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
