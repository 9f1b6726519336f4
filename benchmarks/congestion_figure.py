"""Pairs against an all-to-all on ABCI, by samples, ranks and routing: writes
docs/data/congestion-abci.csv and docs/figures/congestion-abci.png from three result folders:

    simshuffle congestion paper/congestion-tokens --network fluid --seeds 2
        --world-size 128,512,2048 --routing d_mod_k --routing ecmp:queue_pairs=4
        --routing adaptive --out RESULTS/tokens
    (likewise congestion-imagenet1k and congestion-deepcam, to folders of these names)
    python -m benchmarks.congestion_figure RESULTS

With --shifts it writes docs/data/congestion-shifts.csv, from two result folders:

    simshuffle congestion paper/congestion-imagenet1k --network fluid --seeds 1
        --world-size 128,272,512,2048 --routing d_mod_k --routing adaptive
        --pattern all_to_all --pattern linear_shift --pattern balanced_shift
        --out RESULTS/imagenet1k
    (likewise congestion-deepcam)
    python -m benchmarks.congestion_figure --shifts RESULTS
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from simshuffle.report import canvas, paper
from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, rule, ticks

DOCS = Path(__file__).parent.parent / "docs"
SAMPLES = {
    "tokens": "tokens, 16 kB",
    "imagenet1k": "ImageNet-1K, 563 kB",
    "deepcam": "DeepCAM, 64 MB",
}
CASES = {
    "pairs_epoch": ("pairing_random", "all", False),
    "pairs_iteration": ("pairing_random", "iteration", False),
    "pairs_iteration_barrier": ("pairing_random", "iteration", True),
    "importance_iteration_barrier": ("pairing_importance", "iteration", True),
    "permutations_sample_barrier": ("random_permutations", "sample", True),
    "permutations_iteration": ("random_permutations", "iteration", False),
    "leaf_iteration": ("pairing_topology", "iteration", False),
}
"""Pattern, batching and barrier of each case, compared with the all-to-all."""
ROUTINGS = {
    "d_mod_k": ("static (D-mod-K)", "#4477AA", "o"),
    "ecmp:queue_pairs=4": ("ECMP, 4 queue pairs", "#EE6677", "s"),
    "adaptive": ("adaptive", "#228833", "^"),
}


def compare(folder: Path) -> pd.DataFrame:
    """A row for each number of ranks and routing: s of the all-to-all with messages and on the
    wire, what its bytes take of ports
    or of racks at least, and how many times as long each case takes, medians over
    seeds; `_wire` where messages cost nothing."""
    times = pd.read_csv(folder / "times.csv")
    sets = pd.read_csv(folder / "sets.csv").set_index(["world_size", "routing"])
    keys = ["pattern", "batching", "barrier"]
    rows = []
    for (ranks, routing), group in times.groupby(["world_size", "routing"], sort=False):
        medians = group.groupby(keys)[["time_s", "wire_s"]].median()
        all_to_all = medians.loc["all_to_all", "all", False]
        bytes_set = sets.loc[ranks, routing]
        share_leaving = (ranks - ranks / bytes_set["hosts"]) / (ranks - 1)
        row = {
            "samples": folder.name,
            "ranks": ranks,
            "routing": routing,
            "least_s": max(bytes_set["port_s"] * share_leaving, bytes_set["rack_s"]),
            "all_to_all_s": all_to_all["time_s"],
            "all_to_all_wire_s": all_to_all["wire_s"],
        }
        for name, case in CASES.items():
            ratio = medians.loc[case] / all_to_all
            row |= {name: ratio["time_s"], f"{name}_wire": ratio["wire_s"]}
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["ranks", "routing"])


def compare_shifts(folder: Path) -> pd.DataFrame:
    """Return s on the wire of the all-to-all, and of both shifts by their messages, a row
    for each number of ranks and routing."""
    times = pd.read_csv(folder / "times.csv")
    barrier = times["barrier"].map({True: "_barrier", False: ""})
    variant = (times["pattern"] + "_" + times["batching"] + barrier).rename("variant")
    columns = ["ranks", "routing", variant]
    table = (
        times.rename(columns={"world_size": "ranks"})
        .groupby(columns)["wire_s"]
        .median()
    )
    wide = table.unstack("variant").reset_index()
    wide.insert(0, "samples", folder.name)
    return wide


def draw_chart(rows: pd.DataFrame) -> Chart:
    """A panel for each size of samples."""
    looks = {name: Look(*look) for name, look in ROUTINGS.items()}
    looks |= {
        f"{name} wire": Look("", colour, marker, dash="--", width=0.6, fill="none")
        for name, (_, colour, marker) in ROUTINGS.items()
    }
    panels = []
    for number, (name, title) in enumerate(SAMPLES.items()):
        own = rows[rows["samples"] == name].sort_values("ranks")
        marks = [rule(Look(colour="#000000", width=0.6), y=1.0)]
        for column, suffix in (("pairs_epoch_wire", " wire"), ("pairs_iteration", "")):
            points = own.assign(
                x=own["ranks"], y=own[column], look=own["routing"] + suffix
            )
            marks += [
                Mark("line", points[points["routing"] == routing])
                for routing in ROUTINGS
            ]
        x = Axis("ranks" * (number == 2), True, 110, 2400, ticks([128, 512, 2048]))
        y = Axis("pairs / all-to-all", True, 0.3, 4.0, ticks([0.5, 1.0, 2.0, 3.0]))
        panels.append(Panel(marks, x, y, title=title))
    about = (
        "Time of random pairs over that of an all-to-all, on ABCI. Full lines: one message an"
        " iteration, with what messages cost. Dashed: one message an epoch, on the wire."
    )
    return Chart(panels, 4.6, looks, about)


def write_rows(
    compare_folder: Callable[[Path], pd.DataFrame], results: Path, name: str
) -> pd.DataFrame:
    """Write docs/data/NAME.csv from the folders of ``results`` that are there, and return
    its rows."""
    rows = pd.concat(
        [
            compare_folder(results / samples)
            for samples in SAMPLES
            if (results / samples).exists()
        ]
    )
    rows.to_csv(DOCS / "data" / f"{name}.csv", index=False, float_format="%.4g")
    print(f"Written: docs/data/{name}.csv")
    return rows


def main(results: Path, *, shifts: bool) -> None:
    if shifts:
        write_rows(compare_shifts, results, "congestion-shifts")
        return
    rows = write_rows(compare, results, "congestion-abci")
    figure = DOCS / "figures" / "congestion-abci"
    canvas.save(paper.draw(draw_chart(rows)), figure)[1].unlink()
    print(f"Written: {figure}.png")


if __name__ == "__main__":
    main(Path(sys.argv[-1]), shifts="--shifts" in sys.argv)
