"""What algorithms have in common whose ranks go step by step."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.base import Paced
from simshuffle.allreduce.flows import AllreduceFlows
from simshuffle.allreduce.steps import Sends, Steps, dependent_flows, rail_of
from simshuffle.spec.record import Count


class Stepwise(Paced):
    """Each step by itself: no pipeline. The GPUs of a host share ``rails`` HCAs.

    Attributes:
        rails: HCAs that the GPUs of a host share; at most ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    rails: Count

    @abstractmethod
    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send."""

    def flows(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes over ranks on hosts ``host_of``, (M,); None
        for a single rank. See `dependent_flows`."""
        if len(host_of) == 1:
            return None
        sends = Sends.of(self.steps(host_of), rail_of(host_of, self.rails))
        return dependent_flows(sends, host_of, nbytes, self)
