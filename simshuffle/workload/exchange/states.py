"""States of a run as they are saved: plain numbers, texts and arrays, the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Flags
from simshuffle.workload.exchange.epochs import Epochs, EpochState

VERSION = 1
_REMEDY = "Use the checkpoint of this run."
_NUMBERS = ("epochs_done", "world_size", "batch_size", "drop_last", "steps")


def saved(state: EpochState, of: Epochs) -> dict[str, Any]:
    """What is saved of a state of ``of``: 4 bytes for each sample, and, once an epoch has been
    dealt out anew, a bit for each."""
    arrays = {
        "owner": np.asarray(state.owner, np.int32),
        "held": state.held,
        "left": None if state.left is None else np.packbits(state.left),
        "importance": state.importance,
        "ranks_per_host": state.ranks_per_host,
    }
    return {
        "version": VERSION,
        "seed": of.seed,
        "strategy": repr(of.strategy),
        **{name: getattr(state, name) for name in _NUMBERS},
        **{name: value for name, value in arrays.items() if value is not None},
    }


def loaded(state: Mapping[str, Any], of: Epochs) -> EpochState:
    """The state that was saved, for ``of`` to go on from. One without a version was saved between
    epochs. Raises InputError if it is not that of the same samples, or in the middle of an epoch
    not of the same seed and strategy."""
    version, count = state.get("version", 0), of.num_samples
    if version not in (0, VERSION):
        remedy = "Load it with the simshuffle that saved it, and save between epochs."
        _refuse("version", f"must be {VERSION}", version, remedy)
    given = dict(state)
    if version == 0 and "owner" in state:  # before there were versions
        now = {"steps": 0, "batch_size": of.batch_size, "drop_last": of.drop_last}
        given = now | {"world_size": np.asarray(state["owner"]).max(initial=-1) + 1} | given
    needed = ["owner", *_NUMBERS, *["held"] * (of.held is not None)]
    if missing := [name for name in needed if name not in given]:
        _refuse(missing[0], "must be there", ", ".join(state), _REMEDY)
    owner, ranks, steps = np.asarray(given["owner"]), int(given["world_size"]), int(given["steps"])
    if owner.shape != (count,):
        _refuse("owner", f"must be of the {count} samples of this data set", len(owner), _REMEDY)
    # where nobody owns samples it says how they lie in storage, and stays
    most = 0 if of.strategy.redraws else int(owner.max())
    if int(owner.min()) < 0 or most >= ranks:
        rule = f"must be at least 1 and more than {most}, a rank that has a sample"
        _refuse("world_size", rule, ranks, _REMEDY)
    if steps < 0:
        _refuse("steps", "must be at least 0", steps, _REMEDY)
    left: Flags | None = None
    if "left" in given:
        left = np.unpackbits(np.asarray(given["left"]), count=count).astype(np.bool_)
    under_way = steps > 0 or left is not None
    for name, wanted in (("seed", of.seed), ("strategy", repr(of.strategy))):
        if under_way and given.get(name) != wanted:
            rule = f"must be {wanted}: the rest of an epoch follows from it"
            _refuse(name, rule, given.get(name), f"{_REMEDY} Or save it between epochs.")
    return EpochState(
        epochs_done=int(given["epochs_done"]),
        world_size=ranks,
        batch_size=int(given["batch_size"]),
        drop_last=bool(given["drop_last"]),
        steps=steps,
        owner=owner,
        left=left,
        held=None if of.held is None else np.asarray(given["held"]),
        importance=np.asarray(given["importance"]) if "importance" in given else None,
        ranks_per_host=given.get("ranks_per_host"),
    )


def _refuse(name: str, rule: str, value: object, remedy: str) -> NoReturn:
    refuse(f"state.{name}", rule, str(value), remedy, "scheduler")
