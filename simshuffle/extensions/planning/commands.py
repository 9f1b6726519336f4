"""Commands that repeat what a plan simulated, and the plan itself, as a shell takes
them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simshuffle.extensions.planning.prices import IO_SHARE
from simshuffle.job.scenario.scenario import Scenario

if TYPE_CHECKING:
    from simshuffle.extensions.planning.verb import PlanOptions


def quote_scenario(scenario: Any) -> str:
    """Return the word that names a scenario on the command line, quoted for a shell.

    It is the name of a `Scenario`; a name or path stays as it is.
    """
    return shlex.quote(
        scenario.name if isinstance(scenario, Scenario) else str(scenario)
    )


def setting_words(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``--set KEY=VALUE`` for each value, quoted for a shell.

    Texts stand as they are, other values as JSON: None is 'null'.
    """
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        yield f"--set {shlex.quote(f'{key}={text}')}"


def add_settings(command: str, values: Mapping[str, Any]) -> str:
    """Return a command with a ``--set`` behind it for each value."""
    return " ".join([command, *setting_words(values)])


def option_words(options: PlanOptions) -> Iterator[str]:
    """Yield the options, quoted for a shell, that decide a plan beside the scenario and
    its settings. Options that are not given, or as by default, are left out.
    """
    if options.target_accuracy is not None:
        yield f"--target-accuracy {shlex.quote(str(options.target_accuracy))}"
    for name in ("target", "epochs", "budget"):
        if (value := getattr(options, name)) is not None:
            yield f"--{name} {value:.15g}"
    if options.prices:
        prices = ",".join(
            f"{name}={amount:.15g}" for name, amount in options.prices.items()
        )
        yield f"--price {prices}"
    for exchange in options.strategy:
        yield f"--strategy {shlex.quote(exchange)}"
    if options.io_share != IO_SHARE:
        yield f"--io-share {options.io_share:.15g}"
    if options.exact:
        yield "--exact"
