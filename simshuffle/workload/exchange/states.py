"""Save the state of a run as plain numbers, texts and arrays, equal on all ranks, and
load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Flags, Ints
from simshuffle.workload.exchange.epochs import Epochs, EpochState

VERSION = 1
_REMEDY = "Use the checkpoint of this run."
_NUMBERS = ("epochs_done", "world_size", "batch_size", "drop_last", "steps")


def pack_state(state: EpochState, epochs: Epochs) -> dict[str, Any]:
    """Return what a checkpoint keeps of ``state``, a state of ``epochs``.

    Keys: version, seed, strategy, the numbers of the state, and its arrays that are
    not None ('held' for ``epochs_held``, 'left' for ``remaining`` in bits). It takes 4
    bytes for each sample and, once an epoch has been dealt anew, a bit for each; more
    where epochs held or importance are kept. Arrays may be those of ``state`` itself,
    not copies.
    """
    remaining = None if state.remaining is None else np.packbits(state.remaining)
    arrays = {
        "owner": np.asarray(state.owner, np.int32),
        "held": state.epochs_held,
        "left": remaining,
        "importance": state.importance,
        "ranks_per_host": state.ranks_per_host,
    }
    return {
        "version": VERSION,
        "seed": epochs.seed,
        "strategy": repr(epochs.strategy),
        **{name: getattr(state, name) for name in _NUMBERS},
        **{name: array for name, array in arrays.items() if array is not None},
    }


def unpack_state(state: Mapping[str, Any], epochs: Epochs) -> EpochState:
    """Return the state that `pack_state` packed, for ``epochs`` to go on from.

    A state without a version was saved between epochs; what it lacks is taken from
    ``epochs`` and its owners. ``epochs`` does not change. 'held' is dropped where the
    strategy does not need it.

    Raises:
        InputError: if the version is another, a key is missing, an owner is no rank,
            or steps are negative; if the state is not of as many samples or, in the
            middle of an epoch, not of an equal seed and strategy. Between epochs
            another seed or strategy is accepted.
    """
    num_samples = epochs.num_samples
    version = state.get("version", 0)
    if version not in (0, VERSION):
        remedy = "Load it with the simshuffle that saved it, and save between epochs."
        _refuse("version", f"must be {VERSION}", version, remedy)

    values = state
    if version == 0 and "owner" in state:  # before there were versions
        world_size = np.asarray(state["owner"]).max(initial=-1) + 1
        current = {
            "steps": 0,
            "batch_size": epochs.batch_size,
            "drop_last": epochs.drop_last,
        }
        values = {**current, "world_size": world_size, **values}
    required = ["owner", *_NUMBERS, *["held"] * (epochs.epochs_held is not None)]
    if missing := [name for name in required if name not in values]:
        _refuse(missing[0], "must be there", ", ".join(state), _REMEDY)

    owner = np.asarray(values["owner"])
    steps = int(values["steps"])
    world_size = int(values["world_size"])
    _check_owner(owner, world_size, epochs)
    if steps < 0:
        _refuse("steps", "must be at least 0", steps, _REMEDY)

    remaining: Flags | None = None
    if "left" in values:
        remaining = np.unpackbits(np.asarray(values["left"]), count=num_samples).astype(
            np.bool_
        )
    if steps > 0 or remaining is not None:  # in the middle of an epoch
        for name, expected in (
            ("seed", epochs.seed),
            ("strategy", repr(epochs.strategy)),
        ):
            if values.get(name) != expected:
                rule = f"must be {expected}: the rest of an epoch follows from it"
                _refuse(
                    name,
                    rule,
                    values.get(name),
                    f"{_REMEDY} Or save it between epochs.",
                )

    return EpochState(
        epochs_done=int(values["epochs_done"]),
        world_size=world_size,
        batch_size=int(values["batch_size"]),
        drop_last=bool(values["drop_last"]),
        steps=steps,
        owner=owner,
        remaining=remaining,
        epochs_held=None if epochs.epochs_held is None else np.asarray(values["held"]),
        importance=np.asarray(values["importance"]) if "importance" in values else None,
        ranks_per_host=values.get("ranks_per_host"),
    )


def _check_owner(owner: Ints, world_size: int, epochs: Epochs) -> None:
    """Raise an InputError unless ``owner`` is a rank of ``world_size`` for each sample.

    Where every epoch is drawn anew, nobody owns samples: owners need only be 0 or more.
    """
    if owner.shape != (epochs.num_samples,):
        rule = f"must be of the {epochs.num_samples} samples of this data set"
        _refuse("owner", rule, len(owner), _REMEDY)
    # where nobody owns samples it says how they lie in storage, and stays
    highest_rank = 0 if epochs.strategy.redraws else int(owner.max())
    if int(owner.min()) < 0 or highest_rank >= world_size:
        rule = (
            f"must be at least 1 and more than {highest_rank}, a rank that has a sample"
        )
        _refuse("world_size", rule, world_size, _REMEDY)


def _refuse(name: str, rule: str, value: object, remedy: str) -> NoReturn:
    """Raise an InputError at ``state.NAME`` of the scheduler."""
    refuse(f"state.{name}", rule, str(value), remedy, "scheduler")
