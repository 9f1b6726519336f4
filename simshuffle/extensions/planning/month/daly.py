"""Young's and Daly's period between saves, and the share of useful time.

A period is the time of training between two saves, as ``workload.checkpoint.period``.
``save`` is how long training stands still for a save (s), ``failure_interval`` the mean
time between two failures of the whole machine (s), ``restart`` the time from a failure
until training goes on (s).
"""

from __future__ import annotations

import math


def young(save: float, failure_interval: float) -> float:
    """Young's period (s), of first order: sqrt(2 save failure_interval).

    J. W. Young, CACM 17, 1974.
    """
    return math.sqrt(2 * save * failure_interval)


def daly(save: float, failure_interval: float) -> float:
    """Daly's period (s), of higher order (J. T. Daly, FGCS 22, 2006).

    With x = save / (2 failure_interval) it is sqrt(2 save failure_interval) (1 +
    sqrt(x) / 3 + x / 9) - save; ``failure_interval`` itself where a save takes at least
    twice that.
    """
    if save >= 2 * failure_interval:
        return failure_interval
    x = save / (2 * failure_interval)
    return (
        math.sqrt(2 * save * failure_interval) * (1 + math.sqrt(x) / 3 + x / 9) - save
    )


def share(period: float, save: float, restart: float, failure_interval: float) -> float:
    """Return the share of the time that is useful, exact for exponential failures.

    Failures may also come while saving or restarting (Daly 2006, the complete cost
    function): a period with its save takes failure_interval * exp(restart /
    failure_interval) * (exp((period + save) / failure_interval) - 1). 0 where period,
    save and restart together exceed 700 failure intervals.
    """
    cycle = period + save
    if (
        cycle + restart
    ) / failure_interval > 700:  # exp would be infinite, and the share 0
        return 0.0
    growth = math.exp(restart / failure_interval) * math.expm1(cycle / failure_interval)
    return period / (failure_interval * growth)
