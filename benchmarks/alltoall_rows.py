"""Rows of the all-to-alls that machines measured: python benchmarks/alltoall_rows.py MEASURED.csv,
a table of PICO condensed to its medians; fits what a message costs on the linear algorithm up to
1 KiB and writes validation/alltoall.csv, which all other rows are predictions of."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.studies.alltoall import alltoalls_of_scenario

SYSTEMS = {
    "leonardo": ("Leonardo, 1,024 ranks on 256 hosts", "alltoall-leonardo"),
    "mare_nostrum": ("MareNostrum 5, 32 ranks on 32 hosts", "alltoall-marenostrum5"),
    "fugaku": ("Fugaku, 512 ranks on 8 x 8 x 8 hosts", "alltoall-fugaku"),
}
ALGORITHMS = {
    "linear": ("linear_ompi", "default-linear"),
    "linear_sync": ("linear_sync_ompi", "default-linear-sync"),
    "pairwise": ("pairwise_ompi", "default-pairwise"),
    "bruck": ("modified_bruck_ompi", "default-modified-bruck"),
    "default": ("default_ompi",),
}
FITTED, UP_TO = "linear", 1024.0
SOURCE = "github.com/HLC-Lab/pico (413bc5d, MIT; arXiv 2508.16809), {}, median of {} iterations"
VALIDATION = Path(__file__).parent.parent / "validation"
KEY = "  cluster.message_passing."
FIT = "fitted on the linear all-to-all up to 1 KiB a pair, validation/alltoall.csv"


def _put(fragment: Path, overhead: float, per_byte: float) -> None:
    """Write what was fitted as the last lines of a fragment, in place of those that are there."""
    lines = fragment.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(KEY)]
    kept += [
        f"{KEY}overhead: {overhead * 1e9:.4g} ns",
        f"{KEY}copy_bandwidth: {1e-9 / per_byte:.4g} GB/s",
        f'{KEY}source.overhead: "{FIT}"',
        f'{KEY}source.copy_bandwidth: "{FIT}"',
    ]
    fragment.write_text("\n".join(kept) + "\n", encoding="utf-8")


def fitted(rows: pd.DataFrame, scenario: str) -> tuple[float, float]:
    """Overhead of a message (s) and s a byte, with the least relative errors on the rows."""
    law = alltoalls_of_scenario(load_scenario(scenario))
    _, latency = law.at_once
    each = (rows["median_s"].to_numpy() - latency) / (law.world_size - 1)
    sizes = np.column_stack([np.ones(len(rows)), rows["bytes_per_pair"].to_numpy()])
    overhead, per_byte = np.linalg.lstsq(
        sizes / each[:, None], np.ones(len(rows)), rcond=None
    )[0]
    return float(overhead), float(per_byte)


def main(measured: Path) -> None:
    table = pd.read_csv(measured)
    out = []
    names = {name: own for own, named in ALGORITHMS.items() for name in named}
    table = table.assign(own=table["algorithm"].map(names)).dropna(subset="own")
    for system, (title, scenario) in SYSTEMS.items():
        rows = table[table["system"] == system]
        fit = (rows["own"] == FITTED) & (rows["bytes_per_pair"] <= UP_TO)
        overhead, per_byte = fitted(rows[fit], f"validation/{scenario}")
        _put(VALIDATION / f"{scenario}.yaml", overhead, per_byte)
        print(
            f"{system}: overhead {overhead * 1e9:.0f} ns, copies {1e-9 / per_byte:.4g} GB/s"
        )
        for of, is_fit in zip(rows.to_dict("records"), fit, strict=True):
            size = f"{of['bytes_per_pair']:.0f} B"
            out.append(
                {
                    "set": "alltoall",
                    "case": f"{title}, {of['own']}, {size} a pair",
                    "quantity": "time",
                    "unit": "s",
                    "measured": f"{of['median_s']:.6g}",
                    "low": f"{of['p10_s']:.6g}",
                    "high": f"{of['p90_s']:.6g}",
                    "use": "fit" if is_fit else "predict",
                    "kind": "alltoall",
                    "scenario": f"validation/{scenario}",
                    "values": f"algorithm={of['own']};nbytes={size}",
                    "spread": "",
                    "reason": "message_passing.overhead and .copy_bandwidth"
                    if is_fit
                    else "",
                    "source": SOURCE.format(of["algorithm"], of["iterations"]),
                }
            )
    target = VALIDATION / "alltoall.csv"
    pd.DataFrame(out).to_csv(target, index=False)
    print(f"Written: {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
