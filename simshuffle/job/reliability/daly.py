"""How often to save: Young's and Daly's period, and what share of the time is useful.

A period is the time of training between two saves, as ``workload.checkpoint.period``; ``save`` is
how long training stands for one (s), ``between`` the mean time between two failures of the whole
machine (s), ``restart`` what passes from a failure until training goes on (s).
"""

from __future__ import annotations

import math


def young(save: float, between: float) -> float:
    """Young's period (s), the first order: sqrt(2 save between) (J. W. Young, CACM 17, 1974)."""
    return math.sqrt(2 * save * between)


def daly(save: float, between: float) -> float:
    """Daly's period (s), of higher order (J. T. Daly, FGCS 22, 2006): with x = save / (2 between),
    sqrt(2 save between) (1 + sqrt(x) / 3 + x / 9) - save; ``between`` itself where saves are longer
    than twice that."""
    if save >= 2 * between:
        return between
    x = save / (2 * between)
    return math.sqrt(2 * save * between) * (1 + math.sqrt(x) / 3 + x / 9) - save


def share(period: float, save: float, restart: float, between: float) -> float:
    """The share of the time that is useful, exactly, where failures are exponential and may also
    come while saving or restarting (Daly 2006, the complete cost function): a period with its save
    takes between exp(restart / between) (exp((period + save) / between) - 1)."""
    whole = period + save
    if (whole + restart) / between > 700:  # exp would be infinite, and the share 0
        return 0.0
    growth = math.exp(restart / between) * math.expm1(whole / between)
    return period / (between * growth)
