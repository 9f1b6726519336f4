"""What every routing answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from simshuffle.errors import Problem, TopologyError
from simshuffle.routing.fabric import Fabric
from simshuffle.routing.router import Router
from simshuffle.spec.record import Spec


class RoutingRule(Spec, ABC):
    """Which of the ways through a network messages take, by a few numbers.

    Attributes:
        drawn: whether it draws: another seed gives other routes.
        remembers: whether what a router gave before changes what it gives next.
    """

    drawn: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    @abstractmethod
    def router(self, fabric: Fabric, seed: int) -> Router:
        """The routes over a network; ``seed`` is for what is drawn.

        Raises:
            TopologyError: the routing is not known for this network.
        """

    def warnings(self, fabric: Fabric) -> list[Problem]:
        """What is valid on a network and seldom meant."""
        return []

    def short(self) -> str:
        """As it is written in short: its kind, and the keys that are not the default ones, such as
        ``ecmp:queue_pairs=4``."""
        keys = self.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)
        given = ",".join(f"{key}={value}" for key, value in keys.items())
        kind = str(getattr(self, "kind", type(self).__name__))
        return f"{kind}:{given}" if given else kind

    def describe(self) -> str:
        """Its kind and keys, for people."""
        keys = self.model_dump(mode="json", exclude={"kind"}, exclude_none=True)
        told = ", ".join(f"{key} {value}" for key, value in keys.items())
        kind = str(getattr(self, "kind", type(self).__name__))
        return f"{kind} ({told})" if told else kind


def unsuited(rule: str, found: str, remedy: str) -> TopologyError:
    """The error of a routing that is not known for a network."""
    return TopologyError(Problem("cluster.routing", rule, found, remedy), "routing")
