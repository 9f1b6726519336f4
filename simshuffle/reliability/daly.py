"""How often to save: Young's and Daly's period, and what share of the time is useful.

A period is the time from the start of one save to that of the next while nothing fails; ``save`` is
how long training stands for one (s), ``between`` the mean time between two failures of the whole
machine (s), ``restart`` what passes from a failure until training goes on (s).
"""

from __future__ import annotations

import math


def young(save: float, between: float) -> float:
    """Young's period (s), the first order: sqrt(2 save between) of training between two saves, and
    the save (J. W. Young, CACM 17, 1974)."""
    return math.sqrt(2 * save * between) + save


def daly(save: float, between: float) -> float:
    """Daly's period (s), of higher order (J. T. Daly, FGCS 22, 2006): with x = save / (2 between),
    sqrt(2 save between) (1 + sqrt(x) / 3 + x / 9) - save of training between two saves, and the
    save; where saves are longer than twice the time between failures, that time of training."""
    if save >= 2 * between:
        return between + save
    x = save / (2 * between)
    return math.sqrt(2 * save * between) * (1 + math.sqrt(x) / 3 + x / 9)


def share(period: float, save: float, restart: float, between: float) -> float:
    """The share of the time that is useful, exactly, where failures are exponential and may also
    come while saving or restarting (Daly 2006, the complete cost function): a period of training,
    without its save, takes between exp(restart / between) (exp(period / between) - 1)."""
    useful, exponent = period - save, (period + restart) / between
    if useful <= 0 or exponent > 700:  # exp would be infinite, and the share 0
        return 0.0
    growth = math.exp(restart / between) * math.expm1(period / between)
    return useful / (between * growth)


def share_first_order(period: float, save: float, restart: float, between: float) -> float:
    """The same to first order in the rate of failures: what saves leave, less half a period and a
    restart for each failure; at least 0."""
    return max((1 - save / period) - (period / 2 + restart) / between, 0.0)
