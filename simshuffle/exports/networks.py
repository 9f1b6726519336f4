"""The network of the run's cluster alone: InfraGraph, ibsim, GraphML and node-link JSON, as
``simshuffle machine export`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from simshuffle.exports.export import Options, Tell
from simshuffle.exports.source import Source
from simshuffle.fabrics import ibsim, infragraph
from simshuffle.fabrics.imported import ImportedFabric
from simshuffle.fabrics.network import graphml, of_network

WRITERS: dict[str, Callable[[ImportedFabric], str]] = {
    "infragraph": infragraph.written,
    "ibsim": ibsim.written,
    "graphml": graphml,
    "json": ImportedFabric.to_json,
}
"""What the file of a network holds, by the name of its format."""


def write(source: Source, path: Path, options: Options, tell: Tell) -> Sequence[str]:
    """See `Writer.write`."""
    fabric = of_network(source.scenario.cluster.sketch(), source.reference)
    path.write_text(WRITERS[options.to](fabric), encoding="utf-8")
    return [f"{name}: {count}" for name, count in fabric.counts().items()]
