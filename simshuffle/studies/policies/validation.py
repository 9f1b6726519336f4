"""One number of a study, for comparison with what its paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.library import nearest, read_value
from simshuffle.studies.policies.cases import load
from simshuffle.studies.policies.model import Outcome, compare

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
    missing = [key for key in KEYS[:3] if key not in values]
    if missing:
        raise InputError(
            [Problem(key, "is required", remedy="Add it.") for key in missing], "values"
        )
    overrides = tuple((key, value) for key, value in values.items() if key not in KEYS)
    outcomes = _outcomes(values["study"], values["case"], overrides)
    own, quantity = _usable(outcomes, values["policy"]), values.get("quantity", "ratio")
    _check_known("quantity", quantity, QUANTITIES)
    if quantity == "coverage":
        return own.plan.coverage
    if quantity == "seconds":
        return own.seconds
    to = values.get("to", "perfect")
    if to == "best":
        others = (of for of in outcomes.values() if of.epochs and of.policy != "perfect")
        return own.seconds / min(of.seconds for of in others)
    return own.seconds / _usable(outcomes, to).seconds


@lru_cache(maxsize=32)
def _outcomes(
    study: str, case: str, overrides: tuple[tuple[str, str], ...]
) -> Mapping[str, Outcome]:
    loaded = load(study, {key: read_value(value, key) for key, value in overrides}).only([case])
    return {of.policy: of for of in compare(loaded.system, loaded.cases[case], loaded.seed)}


def _usable(outcomes: Mapping[str, Outcome], policy: str) -> Outcome:
    _check_known("policy", policy, [*outcomes])
    found = outcomes[policy]
    if not found.epochs:
        rule = "cannot be used in this case"
        refuse("policy", rule, repr(policy), found.plan.problem, "values")
    return found


def _check_known(key: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        refuse(key, f"no such {key}", repr(name), nearest(name, [*known]), "values")
