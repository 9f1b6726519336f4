"""What is asked for on the command line: which scenarios, which patterns and models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.network.models import MODELS
from simshuffle.scenario.scenario import Scenario, load_scenario
from simshuffle.spec.library import nearest
from simshuffle.studies.congestion.compare import Progress, Settings, compare
from simshuffle.studies.congestion.folder import KIND, Comparison
from simshuffle.studies.congestion.patterns import PATTERNS
from simshuffle.studies.simulation import result as results


def chosen(settings: Settings, patterns: Sequence[str], models: Sequence[str]) -> Settings:
    """``settings`` with other patterns and models, in the order of the tables; where none is given,
    those it has.

    Raises:
        InputError: a name is not known.
    """
    problems = [
        Problem(option, f"no such {what}", repr(name), nearest(name, list(known)))
        for option, what, names, known in (
            ("--pattern", "pattern", patterns, PATTERNS),
            ("--network", "network model", models, MODELS),
        )
        for name in names
        if name not in known
    ]
    if problems:
        raise InputError(problems, "command line")
    return replace(
        settings,
        patterns=tuple(name for name in PATTERNS if name in patterns) or settings.patterns,
        models=tuple(name for name in MODELS if name in models) or settings.models,
    )


def scenarios(
    reference: str, values: Mapping[str, Any], world_sizes: Sequence[int]
) -> list[Scenario]:
    """The scenario for each world size, smallest first: those given, else those of its sweep, else
    its own. No other key is swept.

    Raises:
        ScenarioError: the scenario, or one of its world sizes, is not valid.
    """
    # a size that is given must not fail because the scenario's own does not fit to other values
    loaded = load_scenario(
        reference, {**values, "world_size": world_sizes[0]} if world_sizes else values
    )
    base = loaded.model_copy(update={"sweep": {}})
    wanted = world_sizes or loaded.sweep.get("world_size", [base.world_size])
    different = {json.dumps(size): size for size in wanted}.values()
    return sorted(
        (base.with_values({"world_size": size}) for size in different),
        key=lambda scenario: scenario.world_size,
    )


def text(of: Sequence[Scenario]) -> str:
    """The scenarios as YAML, a document for each world size."""
    return "---\n".join(scenario.to_yaml() for scenario in of)


def fingerprint(of: Sequence[Scenario], settings: Settings) -> str:
    """Twelve hexadecimal digits that stand for the scenarios, the settings and the code."""
    return results.fingerprint(text(of) + json.dumps(asdict(settings)))


def comparison(of: Sequence[Scenario], settings: Settings, progress: Progress | None) -> Comparison:
    """Run it; arguments and errors as in `compare`."""
    meta = {
        "kind": KIND,
        "fingerprint": fingerprint(of, settings),
        "versions": results.versions(),
        "settings": asdict(settings),
        "message_latency_s": of[0].cluster.message_passing.latency,
    }
    return Comparison(compare(of, settings, progress), meta, text(of))


def with_estimate(
    progress: Progress | None, say: Callable[[str], None], clock: Callable[[], float]
) -> Progress:
    """``progress``, and once a line by ``say`` about how long it all will take, if that is more
    than a minute; ``clock`` tells s.

    The line comes when 5 s have passed and a fiftieth is done, or after a minute; the first run,
    which may compile, does not count.
    """
    begun: list[tuple[float, float]] = []
    told = [False]

    def report(name: str, share: float) -> None:
        now = clock()
        if not begun:
            begun.append((now, share))
        passed, done = now - begun[0][0], share - begun[0][1]
        if not told[0] and done > 0 and ((passed > 5.0 and done > 0.02) or passed > 60.0):
            told[0] = True
            if (whole := passed / done) > 60.0:
                say(
                    f"This will take about {whole / 60:.0f} min in all. Fewer --seeds, --packets or"
                    " --pattern take less."
                )
        if progress is not None:
            progress(name, share)

    return report
