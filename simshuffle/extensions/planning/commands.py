"""Commands that repeat what a plan simulated, and the plan itself, as a shell takes them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simshuffle.extensions.planning.prices import IO_SHARE
from simshuffle.job.scenario.scenario import Scenario

if TYPE_CHECKING:
    from simshuffle.extensions.planning.verb import PlanOptions


def scenario_word(given: Any) -> str:
    """What names a scenario on the command line."""
    return shlex.quote(given.name if isinstance(given, Scenario) else str(given))


def setting_words(values: Mapping[str, Any]) -> Iterator[str]:
    """``--set KEY=VALUE`` of each value, for a shell."""
    for key, value in values.items():
        written = value if isinstance(value, str) else json.dumps(value)
        yield f"--set {shlex.quote(f'{key}={written}')}"


def with_settings(command: str, values: Mapping[str, Any]) -> str:
    """A command with further values."""
    return " ".join([command, *setting_words(values)])


def option_words(options: PlanOptions) -> Iterator[str]:
    """Yield the options of a plan that decide its answer beside the scenario's values, for a
    shell."""
    if options.target_accuracy is not None:
        yield f"--target-accuracy {shlex.quote(str(options.target_accuracy))}"
    for name in ("target", "epochs", "budget"):
        if (value := getattr(options, name)) is not None:
            yield f"--{name} {value:.15g}"
    if options.prices:
        prices = ",".join(f"{name}={amount:.15g}" for name, amount in options.prices.items())
        yield f"--price {prices}"
    for exchange in options.strategy:
        yield f"--strategy {shlex.quote(exchange)}"
    if options.io_share != IO_SHARE:
        yield f"--io-share {options.io_share:.15g}"
    if options.exact:
        yield "--exact"
