"""Which entry of the catalog an epoch log's model is: its gradients and its update are not in the
log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import CATALOG, catalog_entry, nearest, read_yaml
from simshuffle.spec.units import Dimension, parse_quantity
from simshuffle.studies.calibrate.step_times import Network


def networks(
    logged: Sequence[str], models: Mapping[str, str] | Sequence[str], accelerator: str | None
) -> dict[str, Network]:
    """The network of each model of the log that is to be fitted.

    Args:
        logged: names of the models in the log.
        models: the catalog's entry by the name in the log; or a sequence of 'LOGGED=ENTRY' or
            'ENTRY', of which the latter is for the model of that name, or whose name it begins with
            (vgg16 for vgg16_chainer), or for the only one. Models that are not named are left out;
            if none is named, all are taken.
        accelerator: key of the step times; None where an entry has one only.

    Raises:
        InputError: a model is not in the log or not in the catalog, or has no such accelerator.
    """
    wanted = _pairs(logged, models) or {name: name for name in logged}
    entries = sorted(read_yaml(CATALOG / "models.yaml")[0])
    problems = [
        Problem("--model", "must name a model of the log", repr(name), nearest(name, list(logged)))
        for name in wanted
        if name not in logged
    ]
    problems += [
        Problem(
            "--model",
            f"the catalog of models has no entry for '{name}' of the log",
            repr(entry),
            f"Write --model {name}=ENTRY. {nearest(entry, entries)}",
        )
        for name, entry in wanted.items()
        if entry not in entries
    ]
    if problems:
        raise InputError(problems, "epoch log")
    return {name: _network(entry, accelerator) for name, entry in wanted.items()}


def _pairs(logged: Sequence[str], models: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    if isinstance(models, Mapping):
        return dict(models)
    out: dict[str, str] = {}
    for text in [models] if isinstance(models, str) else models:
        name, equals, entry = text.partition("=")
        if equals:
            out[name.strip()] = entry.strip()
        else:
            begun = [name for name in logged if text.startswith(f"{name}_")] or logged
            out[begun[0] if len(begun) == 1 and text not in logged else text] = text
    return out


def _network(entry: str, accelerator: str | None) -> Network:
    model = catalog_entry("models", entry)
    known = sorted(model["accelerators"])
    if accelerator is None and len(known) > 1:
        rule = f"{entry} has step times on several accelerators"
        problem = Problem("--accelerator", rule, ", ".join(known), "Name yours.")
        raise InputError(problem, "epoch log")
    chosen = accelerator or known[0]
    # an accelerator that the catalog lacks is what a calibration is for; its update is then inside
    # the forward and backward pass
    times = model["accelerators"].get(chosen)
    update = parse_quantity(times["update"], Dimension.SECONDS) if times else 0.0
    return Network(entry, parse_quantity(model["gradient_size"], Dimension.NBYTES), chosen, update)
