"""What the choice hangs on: the value of an input at which another strategy becomes the cheapest.

Every input is moved alone. The closed forms of `simshuffle.plan.bounds` say by how much an epoch
gets longer or shorter than the one that was simulated. What they leave out is a factor on the
mechanism that binds now, as in `simshuffle.uncertainty.interval`: if another one binds then, it is
gone. A strategy that does not fit the hosts now costs what the closed forms say of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simshuffle.plan.bounds import bounds
from simshuffle.plan.holding import staging_seconds
from simshuffle.scenario.scenario import Scenario, from_dict
from simshuffle.spec.units import Dimension, format_quantity
from simshuffle.studies.planning.cells import OPEN_RATE, READ_BANDWIDTH
from simshuffle.studies.planning.costs import Needs, Prices, cheapest
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.uncertainty.inputs import keys_of, scaled
from simshuffle.uncertainty.interval import epoch, loop_of, mechanism

REACH, STEPS = 32.0, 41
"""Times an input is made smaller and larger, and how many values are tried on either side."""
FINE, ROUNDS = 12, 40
"""Halvings of the step in which the strategy changes, and of a factor that is looked for."""
CAPACITY = {"ssd": "cluster.ssd.capacity", "memory": "cluster.memory.capacity"}
STEP, NIC, SPACE = "step time", "NIC", "capacity"
NIC_KEYS = ("cluster.topology.link_bandwidth", "cluster.topology.host_bandwidth")
UNITS = {SPACE: Dimension.NBYTES, "open rate": Dimension.FREQUENCY, STEP: Dimension.SECONDS}


@dataclass(frozen=True)
class Offered:
    """A strategy, as `TurnsCell` weighs it."""

    name: str
    scenario: Scenario  # with it, on hosts with room for it
    kept_nbytes: float
    epochs: int  # of the training
    mixing: float  # as of `simshuffle.studies.planning.asked.Candidate`
    seconds: float  # of the training on the machine as it is
    goodput: float  # share of the time that is useful
    needs: Callable[[Scenario], Needs]  # of a machine
    model: Mapping[str, float]  # the factor on the mechanism that binds now

    def cost(self, prices: Prices, factors: Mapping[str, float]) -> float:
        """Of the training, with inputs of the machine multiplied."""
        moved = scaled(self.scenario, factors) if factors else self.scenario
        more = (self._epoch(moved) - self._epoch(self.scenario)) if factors else 0.0
        return self.needs(moved).cost(prices, self.seconds + self.epochs * more / self.goodput)

    def _epoch(self, machine: Scenario) -> float:
        return epoch(bounds(machine), self.model, loop_of(machine))


@dataclass(frozen=True)
class TurnsCell(PlainCell):
    """The inputs that change the choice."""

    document: Mapping[str, Any]  # the scenario, without sweep
    # name, exchange, kept_nbytes, epochs, mixing, hosts, goodput, reads_pfs; epoch_s of a
    # warm epoch and seconds of the training, None where it was not simulated
    offers: Sequence[Mapping[str, Any]]
    prices: Prices
    close: float  # share of a cost that is no difference

    label = "what the choice hangs on"

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        plain = {k: v for k, v in self.document.items() if k not in {"name", "description"}}
        return [plain, [dict(of) for of in self.offers], dict(self.prices), self.close]

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the rows of the table `turns`."""
        base = from_dict(self.document, "")
        weighed = _Weighed(
            base, [_offered(base, of) for of in self.offers], self.prices, self.close
        )
        rows: list[dict[str, Any]] = []
        of_inputs = inputs(base)
        for number, (name, keys) in enumerate(of_inputs.items()):
            rows += weighed.turns(name, keys)
            tell((number + 1) / len(of_inputs))
        return Outcome({"turns": rows})


def inputs(base: Scenario) -> dict[str, list[str]]:
    """The inputs that are moved: what they are called, and the keys of each."""
    tier, there = base.workload.staging.target, keys_of(base)
    times = f"workload.model.accelerators.{base.cluster.host.accelerator}."
    found = {
        SPACE: [CAPACITY[tier]],
        "open rate": [OPEN_RATE],
        "PFS bandwidth": [READ_BANDWIDTH],
        STEP: sorted((k for k in there if k.startswith(times)), key=_forward_first),
        NIC: [key for key in NIC_KEYS if key in there],
    }
    return {name: keys for name, keys in found.items() if keys}


def _forward_first(key: str) -> tuple[bool, str]:
    return not key.endswith(".forward"), key


def _offered(base: Scenario, of: Mapping[str, Any]) -> Offered:
    tier = base.workload.staging.target
    room = max(base.cluster.capacity(tier), 2 * of["kept_nbytes"])
    key = CAPACITY[tier]
    raised = scaled(base, {key: room / base.cluster.capacity(tier)})
    scenario = raised.with_values({"workload.exchange": of["exchange"]})
    model, seconds = {}, of["seconds"]
    if seconds is None:
        seconds = staging_seconds(scenario) + of["epochs"] * bounds(scenario).epoch
    else:
        model = _left_out(scenario, of["epoch_s"])

    def needs(machine: Scenario) -> Needs:
        pfs = machine.cluster.parallel_file_system
        on_ssd = of["kept_nbytes"] if tier == "ssd" else 0.0
        if not of["reads_pfs"]:
            return Needs(of["hosts"], on_ssd)
        return Needs(of["hosts"], on_ssd, pfs.read_bandwidth, pfs.open_rate)

    return Offered(
        of["name"],
        scenario,
        of["kept_nbytes"],
        of["epochs"],
        of["mixing"],
        seconds,
        of["goodput"],
        needs,
        model,
    )


def _left_out(scenario: Scenario, simulated: float) -> dict[str, float]:
    """The factor on the mechanism that binds, with which the closed form of an epoch is as long as
    the simulated one (s)."""
    name, found, loop = mechanism(scenario), bounds(scenario), loop_of(scenario)
    low, high = 1 / REACH, REACH
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5
        longer = epoch(found, {name: middle}, loop) > simulated
        low, high = (low, middle) if longer else (middle, high)
    return {name: high}


@dataclass(frozen=True)
class _Weighed:
    """All strategies, on the machine as it is and with inputs moved."""

    base: Scenario
    offers: Sequence[Offered]
    prices: Prices
    close: float

    def best(self, name: str, keys: Sequence[str], factor: float) -> str:
        """The cheapest strategy that fits, with an input multiplied; '' if none fits."""
        space = name == SPACE
        moved = {} if space else dict.fromkeys(keys, factor)
        room = self.base.cluster.capacity(self.base.workload.staging.target)
        fit = [of for of in self.offers if of.kept_nbytes <= room * (factor if space else 1.0)]
        costs = {of.name: of.cost(self.prices, moved) for of in fit}
        return cheapest(costs, {of.name: of.mixing for of in fit}, self.close)

    def turns(self, name: str, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The nearest value below and above at which another strategy is the cheapest."""
        best = partial(self.best, name, keys)
        now = best(1.0)
        for end in (1 / REACH, REACH):
            before = 1.0
            for factor in np.geomspace(1.0, end, STEPS)[1:].tolist():
                if best(factor) != now:
                    border = _border(best, before, factor, now)
                    yield _row(self.base, name, keys, now, border, best(border))
                    break
                before = factor


def _border(best: Callable[[float], str], near: float, far: float, now: str) -> float:
    """The factor at which another one is the cheapest, between one where it is not and one where it
    is."""
    for _ in range(FINE):
        middle = (near * far) ** 0.5
        near, far = (middle, far) if best(middle) == now else (near, middle)
    return far


def _row(
    base: Scenario, name: str, keys: Sequence[str], now: str, factor: float, after: str
) -> dict[str, Any]:
    plain = {key: _value(base, key) for key in keys}
    unit = UNITS.get(name, Dimension.BANDWIDTH)
    values = {key: format_quantity(float(f"{v * factor:.4g}"), unit) for key, v in plain.items()}
    key = keys[0]
    return {
        "input": name,
        "key": key,
        "now": plain[key],
        "value": plain[key] * factor,
        "factor": factor,
        "before": now,
        "after": after,
        "shown": values[key],
        "values": values,
    }


def _value(record: Any, key: str) -> float:
    for name in key.split("."):
        record = record[name] if isinstance(record, dict) else getattr(record, name)
    return float(getattr(record, "y", (record,))[-1])
