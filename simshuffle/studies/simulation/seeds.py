"""How many seeds a run may have, and which: the scenario's own and those after it."""

from __future__ import annotations

import re

from simshuffle.errors import InputError, Problem
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.overrides import MOST_COMBINATIONS

OPTION = "--seeds"


def read_seeds(text: str) -> int:
    """The number of seeds that a command line names.

    Raises:
        InputError: it is no whole number.
    """
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()):
        raise _refused("must be a whole number from 1 on", repr(text), "For example --seeds 5.")
    return int(text)


def check_seeds(seeds: int, runs: int, swept: bool) -> None:
    """See that each of ``runs`` can have so many seeds.

    Args:
        seeds: how many.
        runs: how many there are with one seed each.
        swept: whether the seed is a key that is swept.

    Raises:
        InputError: ``seeds`` is no whole number from 1 on, the seed is swept too, or that makes too
            many runs.
    """
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise _refused("must be a whole number from 1 on", repr(seeds), "For example --seeds 5.")
    if swept and seeds > 1:
        raise _refused("is not needed where seed is swept", str(seeds), "Drop one.")
    if seeds > 1 and seeds * runs > MOST_COMBINATIONS:
        rule = f"must make at most {MOST_COMBINATIONS} runs"
        most = max(1, MOST_COMBINATIONS // runs)
        raise _refused(rule, f"{seeds} for each of {runs}", f"Give at most {most}.")


def _refused(rule: str, given: str, remedy: str) -> InputError:
    return InputError(Problem(OPTION, rule, given[:60], remedy), "command line")


def seeds_from(scenario: Scenario, seeds: int) -> range:
    """The seeds of a scenario: its own, and those after it."""
    return range(scenario.seed, scenario.seed + seeds)
