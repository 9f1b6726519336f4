"""What Ray Data's operator of `Dataset.mix` takes of its sources, block by block.

To record again: ``python tests/ray_mix.py``, with Ray Data 2.60.0.
"""

import json
import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace

RECORDED = Path(__file__).parent / "data" / "orders" / "ray_mix.json"


class Queue(deque):
    """A queue of blocks."""

    add, get_next = deque.append, deque.popleft
    has_next = deque.__len__


def mixed(sources, weights, stopping):
    """The blocks of sources, each as (number, rows), in the order of the operator."""
    from ray.data import MixStoppingCondition
    from ray.data._internal.execution.operators.mix_operator import MixOperator

    operator = MixOperator.__new__(MixOperator)
    nothing = lambda *_, **__: None  # noqa: E731
    vars(operator).update(
        _weights=[weight / sum(weights) for weight in weights],
        _stopping_condition=MixStoppingCondition(stopping),
        _input_buffers=[Queue() for _ in sources],
        _output_buffer=Queue(),
        _rows_seen=[0] * len(sources),
        _input_done_flags=[True] * len(sources),
        _stopped=False,
        _metrics=SimpleNamespace(on_input_dequeued=nothing, on_output_queued=nothing),
        mark_execution_finished=nothing,
    )
    for queue, blocks in zip(operator._input_buffers, sources, strict=True):
        for number, rows in blocks:
            queue.add(SimpleNamespace(number=number, num_rows=lambda rows=rows: rows))
    operator._try_output()
    return [bundle.number for bundle in operator._output_buffer]


def main():
    """Ask for 300 mixtures."""
    rng, lines = random.Random(0), []
    for _ in range(300):
        weights = [rng.choice([0.1, 0.3, 0.7, 1.0, 2.0]) for _ in range(rng.choice([2, 2, 3]))]
        sources = [rng.randint(1, 8) for _ in weights]
        samples = [rng.randint(1, 9) for _ in range(sum(sources))]
        stopping = rng.choice(["stop_on_shortest", "stop_on_longest_drop"])
        blocks = list(enumerate(samples))
        own = [[blocks.pop(0) for _ in range(count)] for count in sources]
        case = {"samples": samples, "order": {"sources": sources, "weights": weights}}
        case["order"]["stopping"] = stopping
        lines.append(json.dumps(case | {"shards": mixed(own, weights, stopping)}))
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
