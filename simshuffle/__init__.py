"""simshuffle: what does shuffling the data cost in distributed deep learning, and what
does not shuffling cost?

from simshuffle import load_scenario, run, sweep

result = run(load_scenario("abci-imagenet1k", {"world_size": 512}))
result.breakdown
sweep("quickstart", over={"world_size": [16, 32]}, seeds=3).figure()

Every verb of the command line that makes a result is a function here. ``__init__.pyi``
has their signatures; it is made from the options of the studies (``make reference``).
"""

from __future__ import annotations

import importlib
from pkgutil import resolve_name
from typing import Any

from simshuffle.moved import keep_old_names
from simshuffle.version import __version__ as __version__

keep_old_names()

_HOMES = {
    "Result": "study.study",
    "Scenario": "job.scenario.scenario",
    "ScenarioError": "errors",
    "SimpyNetwork": "job.sim.simpy_network",
    "SimshuffleError": "errors",
    "compare": "api",
    "load_scenario": "job.scenario.scenario",
    "read": "api",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, and keep it in this module.

    So ``simshuffle --help`` answers at once. An AttributeError names the plugin or
    replacement of a name that is not there, if one is known.
    """
    if name in _HOMES:
        value = getattr(importlib.import_module(f"simshuffle.{_HOMES[name]}"), name)
    elif name == "__all__":
        value = sorted(
            ["__version__", *_HOMES, *_verbs_by_function(), *_extension_functions()]
        )
    elif not name.startswith("_") and name in (functions := _verbs_by_function()):
        from simshuffle.study.functions import function_of  # noqa: PLC0415 - what computes

        value = function_of(functions[name])
    elif not name.startswith("_") and name in (places := _extension_functions()):
        value = resolve_name(places[name])
    else:
        raise AttributeError(
            f"module 'simshuffle' has no attribute '{name}'{_plugin_remedy(name)}"
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*globals(), *_HOMES, *_verbs_by_function(), *_extension_functions()])


def _plugin_remedy(name: str) -> str:
    """Return ': ' and how to get a plugin's function, or what replaces a removed one.

    '' for other names.
    """
    from simshuffle.study.registry import PLUGIN_REMEDIES, REMOVED  # noqa: PLC0415 - when one is missing

    remedies = PLUGIN_REMEDIES | REMOVED
    return f": {remedies[name]}" if name in remedies else ""


def _verbs_by_function() -> dict[str, Any]:
    """Map the name of every public function that is made from a verb to its verb."""
    from simshuffle.study.registry import verbs  # noqa: PLC0415 - when one is used

    return {verb.function: verb for verb in verbs().values() if verb.function}


def _extension_functions() -> dict[str, str]:
    """Map the name of every other public function of extensions to its place,
    "module:function".

    Dotted names, which live in subpackages (``train.record``), are left out.
    """
    from simshuffle.study.registry import merge_extensions  # noqa: PLC0415 - when one is used

    return {
        name: place
        for name, place in merge_extensions().functions.items()
        if "." not in name
    }
