"""The interface of every topology, `Interconnect`, and the scale-up domains that may
join hosts beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic_core import PydanticCustomError

from simshuffle.fabric.topology.graph import Graph, Sketch, new_graph
from simshuffle.spec.record import Bandwidth, Seconds, Sourced, Spec


class ScaleUp(Sourced):
    """Scale-up domains: every ``hosts`` consecutive hosts (the last domain maybe fewer)
    whose GPUs are joined by switches of their own, as by NVLink in an NVL72.

    Attributes:
        hosts: of a domain.
        bandwidth: of each GPU in each direction, to all other hosts of the domain
            together.
        latency: from GPU to GPU.
    """

    hosts: Annotated[int, Field(ge=2, le=4096)]
    bandwidth: Bandwidth
    latency: Seconds


class Interconnect(Spec, ABC):
    """A network between hosts, by a few numbers.

    Attributes:
        hcas_are_rails: whether every host must have as many HCAs as links, one for each
            rail.
        default_routing: the kind of routing that is taken if none is named; D-mod-K
            becomes min-hop where switches do not stand in levels.
    """

    hcas_are_rails: ClassVar[bool] = False
    default_routing: ClassVar[str] = "d_mod_k"

    @property
    @abstractmethod
    def num_hosts(self) -> int:
        """Hosts of the network, without building its graph.

        Raises:
            TopologyError: it is not a usable network.
        """

    @property
    @abstractmethod
    def links_per_host(self) -> int:
        """Links of a host to switches; of the host with the fewest, if they differ.
        Raises as `num_hosts`.
        """

    @property
    def domains(self) -> ScaleUp | None:
        """Scale-up domains that join hosts beside the network; None if there are none."""
        return None

    def structure(self) -> str:
        """Describe in words how many switches and links the network has, where its keys
        do not tell; else return an empty text.
        """
        return ""

    @property
    def height(self) -> int | None:
        """The number of switch levels less one, if the network is a tree in which all
        routes go up and then down; else None.
        """
        return None

    @property
    def uneven(self) -> bool:
        """True if cables between two levels may differ in bandwidth."""
        return False

    @abstractmethod
    def build(self, graph: Graph) -> None:
        """Add all nodes and links of the network to ``graph``; see
        `simshuffle.fabric.topology.graph`.

        Raises:
            TopologyError: it is not a usable network.
        """

    def graph(self) -> Graph:
        """Build the network as a networkx multigraph, anew at each call; raises as
        `build`.
        """
        graph = new_graph(**self._attributes)
        self.build(graph)
        return graph

    def sketch(self) -> Sketch:
        """Build the network as a `Sketch`, anew at each call; raises as `build`."""
        sketch = Sketch(**self._attributes)
        self.build(sketch)
        return sketch

    @property
    def _attributes(self) -> dict[str, int]:
        """Attributes of the graph: its height if it is a tree, else none."""
        return {} if self.height is None else {"height": self.height}

    @property
    def key(self) -> str:
        """A text that identifies the network: equal for equal networks, different for
        different ones. The ``source`` of its values does not count.
        """
        return f"{type(self).__qualname__} {self.model_dump_json(exclude={'source'})}"


def problem(key: str, rule: str, value: object, remedy: str) -> PydanticCustomError:
    """Return the pydantic error of ``key`` of a topology, with its rule, its value and
    a remedy.

    Args:
        key: the key of the topology's record that is wrong.
        rule: the rule that the value breaks; continues a sentence that begins with the
            key.
        value: the value that breaks it; shown as `str` writes it.
        remedy: a sentence that says what to write instead.
    """
    context = {"key": key, "rule": rule, "value": str(value), "remedy": remedy}
    return PydanticCustomError("topology", "{key} {rule}", context)
