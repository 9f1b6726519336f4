"""InfraGraph: the network of the run's cluster, as ``simshuffle machine export`` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simshuffle.exports.export import Options, Tell
from simshuffle.exports.source import Source
from simshuffle.fabrics.infragraph import written
from simshuffle.fabrics.network import of_network


def write(source: Source, path: Path, options: Options, tell: Tell) -> Sequence[str]:
    """See `Writer.write`."""
    fabric = of_network(source.scenario.cluster.topology.sketch(), source.reference)
    path.write_text(written(fabric), encoding="utf-8")
    return [f"{name}: {count}" for name, count in fabric.counts().items()]
