"""Fits what divided training on ABCI took, and writes the rows that are validated:
python benchmarks/fit_parallelism.py

Of each model and strategy two parameters at most are fitted, on the two smallest numbers of GPUs,
or on the smallest where only two were measured: ``compute_factor`` on the compute, or where groups
are of all GPUs ``repeated``, and ``bus_bandwidth`` within a group on the communication. Each is the
geometric mean of what fits each of the two alone; these are its ends. Where one number of GPUs was
fitted alone, the ends are a guess. Of CosmoFlow whole iterations were measured, on which the bus
bandwidth is fitted. Gradients are summed with the bus bandwidths of data parallelism
(validation/abci-chainer-2020.yaml), with pixels divided in each group first.

``input_bandwidth`` is fitted on logs, whose iterations include the input: on their two smallest
numbers of GPUs, both below the others that the strategy was fitted on.

It writes validation/parallelism-2021.yaml and validation/parallelism.csv.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from paradl import REPORT, Published, published

from simshuffle.extensions.calibration.validation.answers import (
    IterationParts,
    iteration_parts,
)
from simshuffle.extensions.calibration.validation.table import COLUMNS

ROOT = Path(__file__).parent.parent
SCENARIO = "validation/hybrid-abci-2020"
DATA_FITTED = {  # on which data parallelism was fitted: see abci_2020.csv
    "resnet50": (2, 4, 8, 16, 32),
    "vgg16": (4, 8, 16, 32),
    "alexnet": (4, 8, 32),
}
SIMULATED = {("resnet50", 8, 64): 20, ("resnet50", 32, 256): 20}
"""Points of the logs that are simulated too, and iterations of their epochs."""
LOAD = "cluster.parallel_file_system.background_load=0..0.6"
FACTOR, REPEATED, BANDWIDTH = "compute_factor", "repeated", "bus_bandwidth"
INPUT_BANDWIDTH, LOGGED = "input_bandwidth", "iteration with input"
NUMBERS = ("measured", "low", "high")
LOWEST, HIGHEST = 1e6, 1e12
"""Bytes/s between which a bus bandwidth lies."""
NEAR, EXACT = 0.002, 1e-5
UNKNOWN = 1.25
"""How far the ends of a parameter are away that was fitted on one number of GPUs (estimate)."""


@dataclass(frozen=True)
class Fitted:
    """A parameter, and its ends."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """What was fitted of a model and a strategy, on which numbers of GPUs, and of its logs on
    which."""

    model: str
    strategy: str
    gpus: tuple[int, ...]
    logged_gpus: tuple[int, ...]
    parameters: dict[str, Fitted]


def values_of(line: Published, parameters: dict[str, float]) -> dict[str, str]:
    """What is set in the scenario."""
    kind = line.strategy.partition("+")[0]
    said = [] if kind == "data" else [f"ways={line.ways}"]
    batch, rest = divmod(line.group_batch, line.ways)
    if rest:
        batch = 1
        said += [f"group_batch={line.group_batch}"]
    if line.model.startswith("cosmoflow"):
        said += ["convolutions=2"]
    if kind == "spatial":
        said += ["group_sum=true"]
    said += [f"{name}={_written(name, value)}" for name, value in parameters.items()]
    return {
        "workload.model": line.model,
        "world_size": str(line.gpus),
        "workload.local_batch_size": str(batch),
        "workload.parallelism": ":".join(filter(None, (kind, ",".join(said)))),
    }


def _written(name: str, value: float) -> str:
    in_gigabytes = name in (BANDWIDTH, INPUT_BANDWIDTH)
    return f"{value / 1e9:.3g} GB/s" if in_gigabytes else f"{value:.3g}"


def predicted(line: Published, parameters: dict[str, float]) -> float:
    """s of what a line measured."""
    return _parts(tuple(values_of(line, parameters).items())).quantity(line.quantity)


@cache
def _parts(values: tuple[tuple[str, str], ...]) -> IterationParts:
    return iteration_parts(SCENARIO, dict(values))


def fits() -> list[Fit]:
    """All fits, in the order of the lines."""
    lines = [line for line in published() if line.set == REPORT]
    logged = [line for line in published() if line.part == LOGGED]
    return [
        _with_input(_fit(model, strategy, lines), logged)
        for model, strategy in dict.fromkeys(
            (line.model, line.strategy) for line in lines
        )
    ]


def _fit(model: str, strategy: str, lines: list[Published]) -> Fit:
    mine = [line for line in lines if (line.model, line.strategy) == (model, strategy)]
    sizes = sorted({line.gpus for line in mine})
    gpus = tuple(sizes[: 1 if len(sizes) == 2 else 2])
    chosen = [line for line in mine if line.gpus in gpus]
    # groups of a constant size do not tell both apart
    name = REPEATED if all(line.ways == line.gpus for line in mine) else FACTOR
    compute = [_computed(line, name) for line in chosen if line.part == "compute"]
    sent = [line for line in chosen if line.part in ("communication", "iteration")]
    parameters = (
        {name: _mean(compute, 1.0 if name == REPEATED else math.inf)} if compute else {}
    )
    parameters[BANDWIDTH] = _mean([_bandwidth(line) for line in sent], math.inf)
    return Fit(model, strategy, gpus, (), parameters)


def _with_input(fit: Fit, logged: list[Published]) -> Fit:
    """The fit with the bandwidth of the input, if there are logs of few enough GPUs."""
    sizes = {
        line.gpus
        for line in logged
        if (line.model, line.strategy) == (fit.model, fit.strategy)
        and line.gpus < fit.gpus[0]
    }
    gpus = tuple(sorted(sizes)[:2])
    chosen = [line for line in logged if line.model == fit.model and line.gpus in gpus]
    if not chosen:
        return fit
    each = [_bandwidth(line, INPUT_BANDWIDTH, _values(fit)) for line in chosen]
    parameters = {**fit.parameters, INPUT_BANDWIDTH: _mean(each, math.inf)}
    return replace(fit, logged_gpus=gpus, parameters=parameters)


def _computed(line: Published, name: str) -> float:
    """The compute factor, or what is repeated, with which a line comes out: compute grows with
    either in proportion."""
    first, last = (1.0, 2.0) if name == FACTOR else (0.0, 1.0)
    one, two = (predicted(line, {name: value}) for value in (first, last))
    assert line.measured is not None
    return max((line.measured - one) / (two - one) + first, 0.01)


def _bandwidth(
    line: Published, name: str = BANDWIDTH, others: dict[str, float] | None = None
) -> float:
    """The bandwidth ``name`` with which a line comes out, of which times fall, with ``others`` as
    they are. Where links keep it from coming out so short, the least with which it comes to within
    `NEAR` of what they allow."""
    assert line.measured is not None

    def more(pace: float) -> float:
        """Of what is wanted, as a share."""
        return predicted(line, {**(others or {}), name: 1 / pace}) / wanted - 1

    wanted = 1.0
    wanted = max(line.measured, (1 + NEAR) * (more(1 / HIGHEST) + 1))
    low = 1 / HIGHEST
    high = 1 / LOWEST
    below = more(low)
    above = more(high)
    secant = True
    while (
        high > low * 1.00001
    ):  # times are nearly in proportion to the inverse of the bandwidth
        pace = (
            low - below * (high - low) / (above - below)
            if secant
            else math.sqrt(low * high)
        )
        off = more(pace)
        secant = not secant
        if abs(off) < EXACT:
            return 1 / pace
        low, below, high, above = (
            (low, below, pace, off) if off > 0 else (pace, off, high, above)
        )
    return 1 / high


def _mean(each: list[float], most: float) -> Fitted:
    value = math.exp(sum(map(math.log, each)) / len(each))
    more = UNKNOWN if len(each) == 1 else 1.0
    ends = (value, min(each) / more, min(max(each) * more, most))
    return Fitted(*(float(f"{x:.3g}") for x in ends))


# ---------------------------------------------------------------------------------- what is written


def fits_text(every: list[Fit]) -> str:
    """The fits as YAML, with what is left of each measured value they were fitted on."""
    out = [
        "# What was fitted of divided training on ABCI; benchmarks/fit_parallelism.py writes this.",
        "# To set it in scenarios/validation/hybrid-abci-2020.yaml, for example:",
        "# --set workload.parallelism=filter:ways=4,compute_factor=...,bus_bandwidth='... GB/s'.",
        "# Residuals are predicted / measured - 1, on the numbers of GPUs that it was fitted on.",
        "fits:",
    ]
    for fit in every:
        out += [
            f"  - model: {fit.model}",
            f"    strategy: {fit.strategy}",
            f"    fitted_on: {list(fit.gpus)}",
        ]
        for name, of in fit.parameters.items():
            ends = ", ".join(
                f"{end}: {_written(name, getattr(of, end))}"
                for end in ("value", "low", "high")
            )
            out.append(f"    {name}: {{{ends}}}")
        out.append("    residuals:")
        for line in published():
            mine = (line.model, line.strategy) == (fit.model, fit.strategy)
            if mine and line.measured and _is_fitted(line, fit):
                error = predicted(line, _values(fit)) / line.measured - 1
                samples = f", {line.group_batch} samples" if line.part == LOGGED else ""
                out.append(
                    f"      {line.gpus} GPUs{samples}, {line.quantity}: {error:+.3f}"
                )
    return "\n".join(out) + "\n"


def _is_fitted(line: Published, fit: Fit) -> bool:
    """Whether a line of a fit's model and strategy fixed one of its parameters."""
    return line.gpus in (fit.logged_gpus if line.part == LOGGED else fit.gpus)


def _values(fit: Fit) -> dict[str, float]:
    return {name: of.value for name, of in fit.parameters.items()}


def rows(every: list[Fit]) -> Iterator[dict[str, str]]:
    """The rows of validation/parallelism.csv."""
    by = {(fit.model, fit.strategy): fit for fit in every}
    for line in published():
        if line.measured is None:
            continue
        fit = by.get((line.model, line.strategy))
        yield _row(line, fit)
        iterations = SIMULATED.get((line.model, line.gpus, line.group_batch))
        if iterations and fit and line.set.endswith("_log"):
            yield _simulated(line, fit, iterations)


def _row(line: Published, fit: Fit | None) -> dict[str, str]:
    numbers = (line.measured, line.low, line.high)
    row = {
        "set": line.set,
        "case": line.case,
        "quantity": line.quantity,
        "unit": "s",
        **{
            name: f"{x:g}" if x else ""
            for name, x in zip(NUMBERS, numbers, strict=True)
        },
        "source": line.source,
    }
    remarks = [_against(line), line.remark]
    if line.remark.startswith("as printed;"):
        odd = dict.fromkeys(("kind", "scenario", "values", "spread"), "")
        return _in_order({**row, **odd, "use": "none", "reason": _told(remarks)})
    fitted = (
        line.gpus in DATA_FITTED[line.model] if fit is None else _is_fitted(line, fit)
    )
    use = "fit" if fitted else "predict"
    return _in_order(
        {
            **row,
            "use": use,
            "kind": "oracle",
            "scenario": SCENARIO,
            "values": _joined(values_of(line, _values(fit) if fit else {})),
            "spread": _spread(line, fit),
            "reason": _told([_named(line, fit), *remarks] if use == "fit" else remarks),
        }
    )


def _simulated(line: Published, fit: Fit, iterations: int) -> dict[str, str]:
    """The samples a second of a run of a few iterations."""
    samples = line.gpus // line.ways * line.group_batch
    more = {"epochs": "2", "workload.dataset.num_samples": str(iterations * samples)}
    assert line.measured is not None
    row = _row(line, fit)
    named = f"{_named(line, fit)}; " if row["use"] == "fit" else ""
    return {
        **row,
        "quantity": "throughput",
        "unit": "1/s",
        "measured": f"{samples / line.measured:.6g}",
        "kind": "run",
        "values": _joined({**values_of(line, _values(fit)), **more}),
        "spread": "",
        "reason": f"{named}simulated, {iterations} iterations an epoch; {line.remark}",
    }


def _in_order(row: dict[str, str]) -> dict[str, str]:
    return {name: row[name] for name in COLUMNS}


def _told(texts: list[str]) -> str:
    return "; ".join(filter(None, texts))


def _named(line: Published, fit: Fit | None) -> str:
    """The parameter that a row fixed."""
    if fit is None:
        return "workload.allreduce.inter_host_bus_bandwidth"
    names = {"compute": next(iter(fit.parameters)), LOGGED: INPUT_BANDWIDTH}
    return f"workload.parallelism.{names.get(line.part, BANDWIDTH)}"


def _against(line: Published) -> str:
    if line.paradl is None or line.measured is None:
        return ""
    return f"ParaDL projects {line.paradl:g} s ({100 * (line.paradl / line.measured - 1):+.0f} %)"


def _joined(values: dict[str, str]) -> str:
    return ";".join(f"{key}={value}" for key, value in values.items())


def _spread(line: Published, fit: Fit | None) -> str:
    """From the quickest to the slowest."""
    if fit is None:
        return LOAD if line.model != "vgg16" and line.gpus >= 32 else ""
    ends = []
    for name, of in fit.parameters.items():
        first, last = of.low, of.high
        if name.endswith("bandwidth"):
            first, last = last, first
        ends.append(
            f"workload.parallelism.{name}={_written(name, first)}..{_written(name, last)}"
        )
    return ";".join(ends)


def main() -> None:
    every = fits()
    (ROOT / "validation" / "parallelism-2021.yaml").write_text(
        fits_text(every), encoding="utf-8"
    )
    with (ROOT / "validation" / "parallelism.csv").open(
        "w", encoding="utf-8", newline=""
    ) as file:
        writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(every))


if __name__ == "__main__":
    main()
