"""One number of a study, for comparison with what its paper prints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import nearest, read_value
from simshuffle.studies.policies.cases import load
from simshuffle.studies.policies.model import Outcome, compare
from simshuffle.studies.policies.plan import POLICIES

QUANTITIES = ("ratio", "seconds", "coverage")
KEYS = ("study", "case", "policy", "to", "quantity")


def predicted(values: Mapping[str, str]) -> float:
    """What the model says.

    Args:
        values: ``study``, ``case`` and ``policy`` by name; ``quantity``: 'seconds' (of all epochs),
            'coverage' (share of the data set), or 'ratio' (the default): seconds over those of the
            policy ``to`` ('perfect' if left out; 'best': the fastest but perfect). Every other key
            is set in the study, such as ``system.compute_bandwidth``.

    Raises:
        InputError: a name is not known, or the policy cannot be used there.
    """
    overrides = tuple((key, value) for key, value in values.items() if key not in KEYS)
    missing = [
        Problem(key, "is required", remedy="Add it.")
        for key in ("study", "case", "policy")
        if key not in values
    ]
    if missing:
        raise InputError(missing, "values")
    outcomes = _outcomes(values["study"], values["case"], overrides)
    quantity, own = values.get("quantity", "ratio"), _usable(outcomes, values["policy"])
    if quantity not in QUANTITIES:
        raise InputError(
            Problem(
                "quantity", "no such quantity", repr(quantity), nearest(quantity, list(QUANTITIES))
            ),
            "values",
        )
    if quantity == "coverage":
        return own.plan.coverage
    if quantity == "seconds":
        return own.seconds
    if values.get("to") == "best":
        return own.seconds / min(
            o.seconds for o in outcomes.values() if o.epochs and o.policy != "perfect"
        )
    return own.seconds / _usable(outcomes, values.get("to", "perfect")).seconds


@lru_cache(maxsize=32)
def _outcomes(
    study: str, case: str, overrides: tuple[tuple[str, str], ...]
) -> Mapping[str, Outcome]:
    loaded = load(study, {key: read_value(value, key) for key, value in overrides}).only([case])
    return {o.policy: o for o in compare(loaded.system, loaded.cases[case], loaded.seed)}


def _usable(outcomes: Mapping[str, Outcome], policy: str) -> Outcome:
    if policy not in outcomes:
        raise InputError(
            Problem("policy", "no such policy", repr(policy), nearest(policy, list(POLICIES))),
            "values",
        )
    if not outcomes[policy].epochs:
        raise InputError(
            Problem(
                "policy", "cannot be used in this case", repr(policy), outcomes[policy].plan.problem
            ),
            "values",
        )
    return outcomes[policy]
