"""Memory of GPTs under ZeRO, against the closed forms of its paper: 2 B of a weight, 2 B of a
gradient and 12 B of Adam and FP32 weights for each parameter (Rajbhandari et al., arXiv 1910.02054,
section 3.1), of which stage 1 divides 12, stage 2 14 and stage 3 all 16 B among N ranks."""

from pathlib import Path

import numpy as np
import pytest

from simshuffle.workload.layers.shipped import layer_list
from simshuffle.workload.parallelism import Data, DividedWorkload, ShardedData

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "memory.md"
RANKS = 64
MODELS = ("gpt_1.3b", "gpt_13b")
CLOSED = {0: lambda n: 16.0, 1: lambda n: 4 + 12 / n, 2: lambda n: 2 + 14 / n, 3: lambda n: 16 / n}
"""B a parameter, by stage; 0 is data parallelism."""


def memory(model, stage):
    layers = layer_list(model)
    none = np.zeros(len(layers))
    job = DividedWorkload(layers, none, none, 0.0, 0.0, 1, RANKS, 2.0, 4096.0)
    state = {"precision": "mixed", "optimiser": "adam"}
    way = ShardedData(kind="sharded_data", stage=stage, **state) if stage else Data(**state)
    return layers.parameters, way.memory(job)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stage", CLOSED)
def test_the_state_of_a_gpt_takes_what_the_paper_says(model, stage):
    parameters, kept = memory(model, stage)
    state = kept.weights + kept.gradients + kept.optimiser
    assert state == pytest.approx(CLOSED[stage](RANKS) * parameters, rel=1e-12)


def test_the_page_has_these_numbers():
    lines = []
    for model in MODELS:
        for stage, of_paper in CLOSED.items():
            parameters, kept = memory(model, stage)
            parts = (kept.weights, kept.gradients, kept.optimiser)
            cells = [f"{part / 1e9:.3g}" for part in (*parts, sum(parts))]
            closed = f"{of_paper(RANKS) * parameters / 1e9:.3g}"
            others = [f"{part / 1e9:.3g}" for part in (kept.activations, kept.buffers)]
            name = f"ZeRO-{stage}" if stage else "data"
            row = [f"`{model}`", f"{parameters / 1e9:.3f}", name, *cells, closed, *others]
            lines.append(f"| {' | '.join(row)} |")
    text = PAGE.read_text()
    missing = [line for line in lines if line not in text]
    assert not missing, "\n".join(lines)
