"""The study behind ``simshuffle study sizes``: what each rank holds, reads and sends,
as planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import refuse
from simshuffle.job.plan.epochs import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import (
    Scenario,
    from_dict,
    load_scenario,
    serialise_scenarios,
)
from simshuffle.studies.sizes.figures import sizes_chart
from simshuffle.study.cell import Cell, Outcome, PlainCell, Tell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import Schema, amount, count, share, text
from simshuffle.study.study import (
    Derived,
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
)

Floats = NDArray[np.float64]
QUANTITIES = {
    "held": "held by a rank",
    "read": "read from storage",
    "cached": "read from memory",
    "sent": "sent to other ranks",
    "received": "received",
}
"""Bytes of a rank in an epoch, and what they are called."""
# columns of quantiles, and the share of ranks below each
QUANTILES = {"least": 0.0, "low": 0.05, "median": 0.5, "high": 0.95, "most": 1.0}
HEADS = {"low": "5 %", "high": "95 %"}
UNEVEN = (
    0.1  # from such a share above the mean on, the rank with most is worth a sentence
)
AWAITED = ("read", "sent", "received")
"""Columns that make other ranks wait for the rank with the largest value."""
_RUN = text("name of the run", head="run")

RANKS = Schema(
    {
        "run": _RUN,
        "rank": count("number of the rank, from 0"),
        "samples": count("samples that the rank trains on"),
        **{
            f"{name}_nbytes": amount(f"bytes {meaning}")
            for name, meaning in QUANTITIES.items()
        },
    },
    key=("run", "rank"),
)
QUANTILES_OF = Schema(
    {
        "run": _RUN,
        "quantity": text(
            "bytes of a rank", *QUANTITIES.values(), head="bytes of a rank"
        ),
        "total_nbytes": amount(
            "bytes of all ranks together", head="all ranks", look="bytes"
        ),
        **{
            name: amount(
                f"quantile {at:g} over ranks (bytes)",
                head=HEADS.get(name, ""),
                look="bytes",
            )
            for name, at in QUANTILES.items()
        },
        "uneven": share(
            "how far the rank with most is above the mean, as a share of the mean; at most 1",
            look=".2gpercent",
        ),
    },
    key=("run", "quantity"),
)


@dataclass(frozen=True)
class SizesCell(PlainCell):
    """The plan of one epoch of a run."""

    label: str  # name of the run
    document: Mapping[str, Any]  # its scenario, without sweep, as plain values
    epoch: int  # from 1

    @property
    def key(self) -> Any:
        """Return what decides the outcome: the scenario and the epoch."""
        return [identity_of(self.document), self.epoch]

    @property
    def cost(self) -> float:
        """Estimate the s of one core to plan the epochs up to this one."""
        samples = int(self.document["workload"]["dataset"]["num_samples"])
        return 0.1 + 2e-7 * self.epoch * samples

    def run(self, tell: Tell) -> Outcome:
        """Plan the epochs up to this one, and return the samples and bytes of each rank
        in it: value 'ranks' of the outcome, lists by column as of `_ranks`.

        ``tell`` is given the share of the epochs that are planned.
        """
        scenario = from_dict(self.document, self.label)
        nbytes = sample_nbytes(scenario)
        for plan in plan_epochs(scenario, nbytes):
            tell(plan.epoch / self.epoch)
            if plan.epoch == self.epoch:
                return Outcome({"ranks": _ranks(plan, nbytes)})
        raise AssertionError(f"{scenario.epochs} epochs are planned")


def _ranks(plan: EpochPlan, nbytes: Floats) -> dict[str, list[float]]:
    """Return samples and bytes of every rank in an epoch, lists (M) by column of
    `RANKS`.

    Held is the shard that the rank trains on. Sent and received are the samples that
    leave their rank. Read and cached are what is read to train on: from storage, and
    from memory. What is read to measure importance is left out.

    Args:
        plan: the epoch; its exchange is (steps, M).
        nbytes: bytes of each sample.
    """
    moving = plan.exchange.moving
    ranks = plan.exchange.world_size
    moved = nbytes[plan.exchange.sample[moving]]
    # a column of the plan is a rank that sends; its target receives
    sender = np.nonzero(moving)[1]
    training = plan.training
    cached = training.hit_nbytes.sum(axis=0)
    return {
        "samples": plan.shards.sizes.tolist(),
        "held_nbytes": plan.shards.sums(nbytes).tolist(),
        "read_nbytes": (training.nbytes.sum(axis=0) - cached).tolist(),
        "cached_nbytes": cached.tolist(),
        "sent_nbytes": np.bincount(sender, moved, ranks).tolist(),
        "received_nbytes": np.bincount(
            plan.exchange.target[moving], moved, ranks
        ).tolist(),
    }


def request(
    scenario: Scenario, epoch: int | None = None
) -> Request[Mapping[str, SizesCell]]:
    """Check a request: an epoch of every run of the scenario's sweep, the last epoch if
    None.

    Args:
        scenario: maybe with a sweep.
        epoch: from 1; None for the last epoch of each run.

    Raises:
        InputError: a run has fewer epochs, or is not valid.
    """
    cells = {}
    for name, single in scenario.runs().items():
        number = single.epochs if epoch is None else epoch
        if number > single.epochs:
            rule = f"must be at most {single.epochs}, the epochs of {name}"
            refuse(
                "--epoch",
                rule,
                str(number),
                f"Add --set epochs={number}.",
                COMMAND_LINE,
            )
        cells[name] = SizesCell(name, single.to_dict(), number)
    document, files = serialise_scenarios([scenario])
    return Request(
        scenario.name, cells, {"scenario.yaml": document}, {"epoch": epoch}, files
    )


def repeat(folder: Path, meta: Meta) -> Request[Mapping[str, SizesCell]]:
    """Return the request of a stored result, from its folder."""
    return request(load_scenario(folder / "scenario.yaml"), meta["epoch"])


def _cells(cells: Mapping[str, SizesCell], outcomes: Outcomes) -> Mapping[str, Cell]:
    """Return the cells of the request, which are its only stage."""
    return cells


def _collect(cells: Mapping[str, SizesCell], outcomes: Outcomes) -> Tables:
    """Return the table `ranks`, with the rows of every run, ascending by rank."""
    parts = [
        pd.DataFrame(of.values["ranks"]).assign(
            run=name, rank=lambda table: range(len(table))
        )
        for name, of in outcomes.items()
    ]
    return {"ranks": pd.concat(parts, ignore_index=True)[list(RANKS.columns)]}


def _quantiles(result: Result) -> pd.DataFrame:
    """Return the derived table of quantiles over ranks, by run and quantity.

    A quantile between two ranks is interpolated. ``uneven`` is the largest rank's excess
    over the mean, as a share of the mean, at most 1; 0 where all is 0.
    """
    rows = []
    for run, table in result.tables["ranks"].groupby("run", sort=False):
        for name, meaning in QUANTITIES.items():
            values = table[f"{name}_nbytes"].to_numpy(np.float64)
            found = np.quantile(values, list(QUANTILES.values())).tolist()
            mean = float(values.mean())
            uneven = min(values.max() / mean - 1, 1.0) if mean else 0.0
            about = {
                "run": run,
                "quantity": meaning,
                "total_nbytes": float(values.sum()),
            }
            rows.append(
                {**about, **dict(zip(QUANTILES, found, strict=True)), "uneven": uneven}
            )
    return pd.DataFrame(rows, columns=list(QUANTILES_OF.columns))


def says(result: Result) -> Iterator[str]:
    """Yield a sentence for each run and quantity that makes ranks wait for one rank.

    Its largest rank exceeds the mean by more than `UNEVEN`, and it is read, sent or
    received.
    """
    awaited = {QUANTITIES[name] for name in AWAITED}
    for row in result.derived["quantiles"].to_dict("records"):
        if row["uneven"] > UNEVEN and row["quantity"] in awaited:
            most, middle = (
                QUANTILES_OF.columns[k].cell(row[k]) for k in ("most", "median")
            )
            yield (
                f"{row['run']}: {row['quantity']}: one rank has {most}, half of the ranks have at"
                f" most {middle}; the others wait for that rank."
            )


def _parts(result: Result) -> Iterator[Any]:
    """Yield the table of quantiles, without quantities that are 0, and its sentences."""
    table = result.derived["quantiles"]
    columns = ("run", "quantity", "total_nbytes", *QUANTILES, "uneven")
    shown = table[table["total_nbytes"] > 0]
    yield QUANTILES_OF.listing(
        shown, "Bytes of a rank in an epoch, over ranks", columns, names=2
    )
    yield from says(result)


STUDY: Study[Mapping[str, SizesCell]] = Study(
    kind="sizes",
    verb="study sizes",
    stages=(_cells,),
    collect=_collect,
    stored={"ranks": RANKS},
    documents=("scenario.yaml",),
    derived={"quantiles": Derived(QUANTILES_OF, _quantiles)},
    figures=lambda result: {"sizes": sizes_chart(result.tables["ranks"], QUANTITIES)},
    one_figure=True,
    parts=_parts,
    again=f"{__name__}:repeat",
)
