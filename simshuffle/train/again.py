"""What is asked of a training by its file, of whichever kind; and by the folder of its result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import find
from simshuffle.study.study import Meta, Request
from simshuffle.train import filtering, shuffling
from simshuffle.train.emulate import device_named
from simshuffle.train.study import document, load_study


def requested(
    reference: str | Path, values: Mapping[str, Any], device: str
) -> tuple[str, Request[Any]]:
    """The kind of the study of that name or file, and what is asked of it.

    Args:
        reference: path, or a name below ``studies/``.
        values: to set, by dotted key.
        device: that trains.

    Raises:
        InputError: there is no such study, or it cannot be trained.
    """
    if document(find(str(reference), "studies")).get("kind") == "data_optimised":
        study = filtering.load_study(reference, values)
        return "data_optimised", filtering.request(study, device)
    return "training", shuffling.request(load_study(reference, values), device)


def again(folder: Path, meta: Meta) -> Request[Any]:
    """The request of a result, from its folder; trained on the same kind of device.

    Raises:
        InputError: its network and data were a program's own, its ranks were processes, or its data
            or device are not here.
    """
    device, name = str(meta["device"]).partition(":")[0], str(meta["study"])
    rule, remedy = "", "again, and simshuffle compare the two folders."
    if "own" in meta:
        rule = "must name its network and data, and these were a program's own"
        remedy = f"Run that program {remedy}"
    elif "ranks" in meta:
        rule = "must be trained on emulated ranks, and these were processes"
        remedy = f"Train it with torchrun {remedy}"
    if rule:
        raise InputError(Problem("", rule, name, remedy), str(folder))
    device_named(device)
    return requested(folder / "study.yaml", {}, device)[1]
