"""The networks that an epoch log trained: their entries of the catalog of models."""

from __future__ import annotations

from collections.abc import Sequence

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.extensions.calibration.calibrate.training import TrainedNetwork
from simshuffle.spec.library import CATALOG, catalog_entry, read_yaml, suggest_nearest
from simshuffle.spec.units import Dimension, parse_quantity


def find_networks(
    logged: Sequence[str], models: Sequence[str], accelerator: str | None
) -> dict[str, TrainedNetwork]:
    """Return the networks to be fitted, by the model's name in the log.

    Args:
        logged: names of the models in the log.
        models: the catalog's entries, as 'LOGGED=ENTRY' or 'ENTRY'. An ENTRY is for the
            model of that name, or whose name it begins with (vgg16_chainer for vgg16),
            or for the log's only model. Models that are not named are left out; if none
            is named, all are taken.
        accelerator: key of the step times; None where each entry has one only. The
            catalog need not have the key.

    Raises:
        InputError: a model is not in the log or not in the catalog, or ``accelerator``
            is None and an entry has several.
    """
    entry_of_model = entries_by_logged_name(logged, models) or {
        name: name for name in logged
    }
    entries = sorted(read_yaml(CATALOG / "models.yaml")[0])
    problems = []
    for name in entry_of_model:
        if name not in logged:
            rule = "must name a model of the log"
            remedy = suggest_nearest(name, list(logged))
            problems.append(Problem("--model", rule, repr(name), remedy))
    for name, entry in entry_of_model.items():
        if entry not in entries:
            rule = f"the catalog of models has no entry for '{name}' of the log"
            remedy = f"Write --model {name}=ENTRY. {suggest_nearest(entry, entries)}"
            problems.append(Problem("--model", rule, repr(entry), remedy))
    if problems:
        raise InputError(problems, "epoch log")
    return {
        name: network_of_entry(entry, accelerator)
        for name, entry in entry_of_model.items()
    }


def entries_by_logged_name(
    logged: Sequence[str], models: Sequence[str]
) -> dict[str, str]:
    """Return the catalog's entry by model of the log, from the values of --model; {} if
    there are none.

    Nothing is checked: a key may be no model of the log, and a value no entry. An ENTRY
    that fits no model of the log, or several, is its own key.
    """
    entries: dict[str, str] = {}
    for argument in models:
        name, equals, entry = map(str.strip, argument.partition("="))
        if not equals:
            matching_names = [
                logged_name
                for logged_name in logged
                if argument.startswith(f"{logged_name}_")
            ] or logged
            entry = name = argument
            if len(matching_names) == 1 and argument not in logged:
                name = matching_names[0]
        entries[name] = entry
    return entries


def network_of_entry(entry: str, accelerator: str | None) -> TrainedNetwork:
    """Return the network of an entry of the catalog of models.

    If ``accelerator`` is None, the network has the only accelerator of the entry. For
    an accelerator that the entry lacks, the update is 0 s.

    Raises:
        InputError: no accelerator is named, and the entry has several.
    """
    model = catalog_entry("models", entry)
    accelerators = sorted(model["accelerators"])
    if accelerator is None and len(accelerators) > 1:
        rule = f"{entry} has step times on several accelerators"
        refuse(
            "--accelerator", rule, ", ".join(accelerators), "Name yours.", "epoch log"
        )
    chosen_accelerator = accelerator or accelerators[0]
    # an accelerator that the catalog lacks is what a calibration is for; its update is then inside
    # the forward and backward pass
    step_times = model["accelerators"].get(chosen_accelerator)
    update = (
        parse_quantity(step_times["update"], Dimension.SECONDS) if step_times else 0.0
    )
    gradients = parse_quantity(model["gradient_size"], Dimension.NBYTES)
    return TrainedNetwork(entry, gradients, chosen_accelerator, update)
