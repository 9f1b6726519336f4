"""Orders of PyTorch, MosaicML Streaming and LitData are those of the libraries, sample by sample."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from pydantic import TypeAdapter

from simshuffle.errors import InputError
from simshuffle.orders import AnyOrder, Readers, ShardedSet
from tests.orders_of_libraries import LIBRARIES, RECORDED, answered

ORDERS = TypeAdapter(AnyOrder)
ANSWERS = {
    library: json.loads((RECORDED / f"{library}.json").read_text(encoding="utf-8"))
    for library in LIBRARIES
}


def sharded(samples):
    return ShardedSet(np.array(samples, np.int64), 1000.0 * np.array(samples))


def order_of(case):
    readers = Readers(case["nodes"], case["ranks"], case["workers"], case["batch_size"])
    order = ORDERS.validate_python(case["order"])
    return order.epoch(sharded(case["samples"]), readers, case["seed"], case["epoch"])


def handed_out(case):
    """Of each rank, of each worker: samples by position; or that it is refused."""
    try:
        order = order_of(case)
    except InputError:
        return "refused"
    who = order.rank * case["workers"] + order.worker
    assert np.all(np.diff(who) >= 0)
    parts = []
    for number in range(case["nodes"] * case["ranks"] * case["workers"]):
        own = who == number
        assert np.array_equal(order.position[own], np.arange(own.sum()))
        parts.append(order.sample[own].tolist())
    return [parts[begin : begin + case["workers"]] for begin in range(0, len(parts), case["workers"])]


@pytest.mark.parametrize("library", LIBRARIES)
def test_orders_are_what_the_library_recorded(library):
    for case in ANSWERS[library]["cases"]:
        asked = {key: value for key, value in case.items() if key != "answer"}
        expected = "refused" if isinstance(case["answer"], str) else case["answer"]
        assert handed_out(asked) == expected, asked
