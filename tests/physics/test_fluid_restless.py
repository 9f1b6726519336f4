"""Where rounding would place two links before each other for ever, all rates are made anew.

That takes sums which have gone up and down thousands of times: 146 pairings of 256 ranks on ABCI
with min-hop routes came to it. Here the engine is compiled, in a process of its own, so that it
takes any link that is placed anew for such a case; what it finds must be the same.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

FOUND = """
import json, sys
import numpy as np
from simshuffle.fabric.network import fluid_sweep as sweep
if sys.argv[1] == "restless":
    sweep.MAX_MOVES_PER_LINK = sweep.EXTRA_MOVES = 0
from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork

out = []
for seed in range(3):
    rng = np.random.default_rng(seed)
    links, each, steps = 60, 160, 8
    routes = [rng.choice(links, 3, replace=False).tolist() for _ in range(each * steps)]
    count = len(routes)
    size = rng.choice([1.0, 2.0, 4.0], count) if seed else rng.exponential(2.0, count)
    waits = np.arange(count - each, dtype=np.int32)
    network = FluidNetwork(np.full(links, 8.0), width=3, tags=count, capped=False)
    what = tasks(count, work=size, tag=np.arange(count))
    network.post(0.0, TransferBatch(what, pad_routes(routes), waits, waits + each))
    network.advance(np.inf)
    out.append([network.finish[:count].tolist(), int(network.clock["n_visits"][0])])
print(json.dumps(out))
"""


def found(word: str, folder: Path) -> list[tuple[list[float], int]]:
    apart = {"NUMBA_CACHE_DIR": str(folder), "NUMBA_OPT": "1"}  # compiled soon, for one run
    done = subprocess.run(
        [sys.executable, "-c", FOUND, word],
        env=os.environ if word == "normal" else os.environ | apart,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    out: list[tuple[list[float], int]] = json.loads(done.stdout)
    return out


def test_rates_made_anew_are_those_that_are_repaired(tmp_path):
    normal, restless = found("normal", tmp_path), found("restless", tmp_path)
    for (ends, visits), (again, visits_again) in zip(normal, restless, strict=True):
        np.testing.assert_allclose(again, ends, rtol=1e-9)
        assert visits != visits_again  # it did go the other way
