"""The candidates of a plan: exchanges to consider, each with what a host stores and its
epochs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simshuffle.errors import InputError, refuse
from simshuffle.extensions.planning.curves import Setting
from simshuffle.job.plan.holding import max_held_nbytes
from simshuffle.job.scenario.options import kinds_of, record_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.library import suggest_nearest
from simshuffle.study.options import COMMAND_LINE
from simshuffle.workload.exchange import Exchange, Strategy

FROM_PFS, FROM_SSD = "global_shuffle:source=pfs", "global_shuffle:source=ssd"
USUAL_FRACTIONS = (0.1, 0.3, 1.0)
"""Q of the partial shuffles that are considered by default."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "local": {"kind": "local_shuffle"},
    "partial": {"kind": "partial_local_shuffle"},
    "IS": {"kind": "importance_exchange"},
    "ILag": {"kind": "importance_exchange", "lagging": True},
    "IS-Pair": {"kind": "importance_pair"},
    "ILag-Pair": {"kind": "importance_pair", "lagging": True},
}
"""Values of the exchange by the short name of its strategy in trainings, without global
shuffle.
"""


@dataclass(frozen=True)
class Candidate:
    """A strategy that a plan considers, with what a host stores and how many epochs the
    training takes.
    """

    name: str  # such as 'partial-0.1'
    exchange: str | dict[str, Any]  # as `--set workload.exchange` has it
    strategy: Strategy  # the exchange as a record
    # scenario with the strategy; None if it cannot be simulated
    scenario: Scenario | None
    obstacle: str  # reason why it cannot be simulated; '' if it can
    kept_nbytes: float  # bytes of samples that a host stores, at most
    # epochs of the training; None if its curve does not reach the target, or if there
    # are curves but none of this strategy
    epochs: int | None
    # best accuracy of its curve (0 to 1); None without a curve
    best_accuracy: float | None

    @property
    def mixing(self) -> float:
        """Return how much an epoch mixes samples: the exchange fraction Q, or 2 where
        every epoch draws samples anew (global shuffle, loaders), more than any Q.
        """
        return 2.0 if self.strategy.fraction is None else self.strategy.fraction


def list_exchanges(
    requested_strategies: Sequence[str],
    own_strategy: Strategy | None,
    curves_by_setting: Mapping[Setting, Any],
    source: str,
) -> list[str | dict[str, Any]]:
    """Return the exchanges to consider, as `--set workload.exchange` has them.

    They are the strategies that the user names, and no others. If the user names none,
    they are those of the curves or, without curves, the usual ones. Then global shuffle
    stands for two, from the file system and from SSDs. Without ``--target-accuracy``
    (``source`` is 'None') the scenario's own is added if no other has its name.

    Raises:
        InputError: two texts of the user have one strategy name, a strategy is unknown
            or has no curve, or Q of a curve is not above 0 and at most 1.
    """
    if requested_strategies:
        records = [
            record_of("--strategy", text, kinds_of(Exchange), {})
            for text in requested_strategies
        ]
        for text, record in zip(requested_strategies, records, strict=True):
            if (
                curves_by_setting
                and setting_of_strategy(record) not in curves_by_setting
            ):
                settings_with_curves = ", ".join(
                    _setting_name(*curve_setting) for curve_setting in curves_by_setting
                )
                rule = f"must be a strategy with a curve: {settings_with_curves}"
                remedy = "Name one of these, or add its curve."
                refuse("--strategy", rule, text, remedy, source)
        names = [strategy_name(record) for record in records]
        if repeated_names := [name for name in names if names.count(name) > 1]:
            rule = "must be named once"
            remedy = "Name each once."
            refuse("--strategy", rule, repeated_names[0], remedy, COMMAND_LINE)
        return list(requested_strategies)
    if not curves_by_setting:
        partial_settings = [("partial", fraction) for fraction in USUAL_FRACTIONS]
        usual_settings: list[Setting] = [
            ("global", None),
            ("local", 0.0),
            *partial_settings,
        ]
        curves_by_setting = dict.fromkeys(usual_settings)
    exchanges: list[str | dict[str, Any]] = []
    for short_name, fraction in curves_by_setting:
        exchanges += _setting_exchanges(short_name, fraction, own_strategy, source)
    if own_strategy is not None and source == "None":
        exchanges.append(
            _shorten_exchange(
                own_strategy.model_dump(mode="json", exclude_defaults=True)
            )
        )
    by_name: dict[str, str | dict[str, Any]] = {}
    for exchange in exchanges:  # the scenario's own may be among the usual ones
        by_name.setdefault(strategy_name(_parse_exchange(exchange)), exchange)
    return list(by_name.values())


def _setting_exchanges(
    short_name: str, fraction: float | None, own_strategy: Strategy | None, source: str
) -> list[str | dict[str, Any]]:
    """Return the exchanges of a setting, as `--set workload.exchange` has them.

    Global shuffle gives two, all others one. An exchange of the kind of the scenario's
    own strategy takes that strategy's other values.

    Raises:
        InputError: there is no such strategy, or Q is not above 0 and at most 1.
    """
    if short_name == "global":
        return [FROM_PFS, FROM_SSD]
    if short_name not in KINDS:
        remedy = suggest_nearest(short_name, ["global", *KINDS])
        refuse("strategy", "no such strategy", repr(short_name), remedy, source)
    values = dict(KINDS[short_name])
    if short_name != "local":
        if fraction is None or not 0 < fraction <= 1:
            rule = f"must be above 0 and at most 1 for {short_name}"
            refuse("exchange_fraction", rule, str(fraction), "Add it.", source)
        if own_strategy is not None and own_strategy.kind == values["kind"]:
            values = {
                **own_strategy.model_dump(mode="json", exclude_defaults=True),
                **values,
            }
        values["exchange_fraction"] = fraction
    return [_shorten_exchange(values)]


def _shorten_exchange(values: dict[str, Any]) -> str | dict[str, Any]:
    """Return the values of an exchange as one text, 'kind:key=value,...', where they
    are plain; else as they are.

    Plain values are texts, numbers and truth values.
    """
    other_values = {key: value for key, value in values.items() if key != "kind"}
    if not all(isinstance(value, str | int | float) for value in other_values.values()):
        return values
    value_words = ",".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in other_values.items()
    )
    return f"{values['kind']}:{value_words}" if value_words else str(values["kind"])


def setting_of_strategy(strategy: Strategy) -> Setting:
    """Return the setting by which accuracy curves know a strategy: its short name and
    Q, which is None where samples are drawn anew and 0 under local shuffle.
    """
    return strategy.short_name, strategy.fraction


def _setting_name(short_name: str, fraction: float | None) -> str:
    """Return the name of a setting, such as 'partial-0.1'; without Q if it is 0 or
    None.
    """
    return f"{short_name}-{fraction:g}" if fraction else short_name


def strategy_name(strategy: Strategy) -> str:
    """Return the name of a strategy in a plan, such as 'partial-0.1', 'global-pfs' or
    'local'.
    """
    if strategy.fraction is None or strategy.tier != "ssd":
        return f"{strategy.short_name}-{strategy.tier}"
    return _setting_name(*setting_of_strategy(strategy))


def build_candidate(
    base: Scenario,
    exchange: str | dict[str, Any],
    learned_by_setting: Mapping[Setting, Mapping[str, Any]],
    epochs: int,
) -> Candidate:
    """Build the candidate of an exchange, with the obstacle where it cannot be
    simulated.

    The bytes that a host stores are the most over the epochs; of a strategy that cannot
    be simulated they are its stored share of the data set.

    Args:
        base: the scenario without failures and checkpoints.
        exchange: the exchange, as `--set workload.exchange` has it.
        learned_by_setting: facts of accuracy curves, as `summarise_curves` has them, by
            setting.
        epochs: epochs of the training where there are no curves. With curves, a
            strategy without one has None.
    """
    strategy = _parse_exchange(exchange)
    learned_setting = learned_by_setting.get(setting_of_strategy(strategy))
    ranks_per_host = base.cluster.ranks_per_host(base.world_size)
    kept_nbytes = (
        strategy.stored_share(base.world_size, ranks_per_host)
        * base.workload.dataset.nbytes
    )
    scenario = None
    obstacle = ""
    try:
        scenario = base.with_values({"workload.exchange": exchange})
        kept_nbytes = max_held_nbytes(scenario)
    except InputError as error:
        obstacle = "; ".join(
            f"{problem.rule}: {problem.value}" for problem in error.problems
        )
    return Candidate(
        name=strategy_name(strategy),
        exchange=exchange,
        strategy=strategy,
        scenario=scenario,
        obstacle=obstacle,
        kept_nbytes=kept_nbytes,
        epochs=learned_setting["epochs"]
        if learned_setting
        else None
        if learned_by_setting
        else epochs,
        best_accuracy=learned_setting["best"] if learned_setting else None,
    )


def _parse_exchange(exchange: str | dict[str, Any]) -> Strategy:
    """Return the strategy that a text or the values of an exchange describe."""
    kind_words = exchange if isinstance(exchange, str) else str(exchange["kind"])
    values = {}
    if not isinstance(exchange, str):
        values = {key: value for key, value in exchange.items() if key != "kind"}
    strategy: Strategy = record_of(
        "workload.exchange", kind_words, kinds_of(Exchange), values
    )
    return strategy
