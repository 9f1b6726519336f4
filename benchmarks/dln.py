"""Halving and doubling on a distributed loop network beside ring, and halving and doubling, on fat
trees: the tables of docs/allreduce.md and docs/data/dln.csv.

    python benchmarks/dln.py [LATENCY] [RANKS ...]
"""

from __future__ import annotations

import sys
from typing import Any

from simshuffle.studies.collective import read_bench

SIZES = {"100 MB": 100e6, "1 GB": 1e9, "10 GB": 10e9}
RANKS = (64, 128, 256, 512, 1024, 2048, 4096)
MACHINE = "small-fat-tree"


def networks(ranks: int) -> dict[str, tuple[dict[str, Any], str]]:
    """Topology and algorithm by the heading of a column."""
    tree = {
        "kind": "fat_tree",
        "ports": 36,
        "hosts": ranks,
        "link_bandwidth": "12.5 GB/s",
    }
    tapered = {**tree, "taper": 3}
    loop = {
        "kind": "dln",
        "switches": ranks,
        "hosts_per_switch": 1,
        "link_bandwidth": "12.5 GB/s",
    }
    halving = "halving_doubling"
    shuffled = "halving_doubling:order=shuffled"
    return {
        "ring, tree": (tree, "ring"),
        "h-d, tree": (tree, halving),
        "h-d, tree 3:1": (tapered, halving),
        "h-d, tree, shuffled": (tree, shuffled),
        "h-d, tree 3:1, shuffled": (tapered, shuffled),
        "h-d, DLN": (loop, halving),
    }


def main(latency: str = "9.6 us", *given: str) -> None:
    """Print a table for every size: ms, and in brackets what the DLN saves of it."""
    rows: dict[str, list[str]] = {size: [] for size in SIZES}
    for ranks in map(int, given or map(str, RANKS)):
        found = {
            name: seconds(ranks, *of, latency) for name, of in networks(ranks).items()
        }
        for size in SIZES:
            dln = found["h-d, DLN"][size]
            cells = [
                f"{1e3 * of[size]:.4g} ({100 * (1 - dln / of[size]):.0f} %)"
                for name, of in found.items()
                if name != "h-d, DLN"
            ]
            rows[size].append(f"| {ranks} | {' | '.join(cells)} | {1e3 * dln:.4g} |")
        sys.stderr.write(f"{ranks}\n")
    for size, of_size in rows.items():
        sys.stdout.write(f"\n**{size}**\n\n| ranks | {' | '.join(networks(64))} |\n")
        sys.stdout.write("|" + "---|" * 7 + "\n" + "\n".join(of_size) + "\n")


def seconds(
    ranks: int, topology: dict[str, Any], kind: str, latency: str
) -> dict[str, float]:
    """Time (s) of an allreduce by size."""
    keys = {"inter_host_latency": latency}
    values = {"cluster.topology": topology}
    made = read_bench(MACHINE, values, kind, keys, hosts=ranks)
    return {name: made.seconds(nbytes) for name, nbytes in SIZES.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
