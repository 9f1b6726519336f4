"""The kernels of the networks as plain Python: the slow twin of what numba makes of them.

Imported before any kernel, this module has the decorators of `simshuffle.spec.compiling` give
functions back as they are, and has arrays found by their address with ctypes, as
`simshuffle.spec.compiling` finds them in compiled code. It is started as a program of its own:

    python -m tests.plain_kernels MODEL SEED
"""

import ctypes
import json
import sys

import numpy as np

from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.fabric.network.flows import Flows, Links
from simshuffle.fabric.network.models import Packet
from simshuffle.spec import compiling

WORD = ctypes.sizeof(ctypes.c_int64)


def plain_at_address(example):
    """As `simshuffle.spec.compiling.at_address`, for Python: the tuple of which the words lie at
    an address."""

    def at(address):
        values = []
        for one in example():
            word = ctypes.c_int64.from_address(address).value
            if not isinstance(one, np.ndarray):
                values.append(word)
                address += WORD
                continue
            shape = tuple((ctypes.c_int64 * one.ndim).from_address(address + WORD))
            size = int(np.prod(shape)) * one.dtype.itemsize
            buffer = (ctypes.c_char * size).from_address(word)
            array = np.ndarray(shape, one.dtype, buffer) if size else np.empty(shape, one.dtype)
            values.append(Array(array))
            address += WORD * (1 + one.ndim)
        return type(example())(*values)

    return at


class Record:
    """A record, whose fields are attributes."""

    def __init__(self, record):
        object.__setattr__(self, "_record", record)

    def __getattr__(self, name):
        return plain(self._record[name])

    def __setattr__(self, name, value):
        self._record[name] = value


class Array:
    """An array of which single values are what they are in compiled code: integers of 64 bits or
    more, and floats that may be divided by 0."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __len__(self):
        return len(self.values)

    def __getitem__(self, at):
        return plain(self.values[at])

    def __setitem__(self, at, value):
        self.values[at] = value._record if isinstance(value, Record) else value


def plain(value):
    if isinstance(value, np.ndarray):
        return Array(value)
    if isinstance(value, np.void):
        return Record(value)
    return int(value) if isinstance(value, np.integer) else value


def plain_entry(function):
    return lambda *values: function(*map(plain, values))


def as_it_is(function):
    return function


def nothing_for(_):
    """What Python does for an instruction that only asks for data ahead of time."""
    return lambda *values: None


def fluid_ends(seed):
    """When transfers end that wait for others and go in pairs (s), and what links carried; with an
    odd seed they have rate limits too. Many start together, so that all ways to make rates fair are
    taken: repair, sweep and filling. Groups post a fifth of them, one behind the other."""
    from simshuffle.fabric.network.fluid import FluidNetwork

    rng = np.random.default_rng(seed)
    count = 160
    routes = [rng.choice(9, int(rng.integers(0, 4)), replace=False).tolist() for _ in range(count)]
    edges = [(int(rng.integers(0, i)), i) for i in range(1, count) if rng.random() < 0.2]
    before, after = np.array(edges, np.int32).reshape(-1, 2).T
    columns = {
        "work": rng.choice([0.0, 1.0, 2.0], count) * rng.choice([1.0, 1.37], count),
        "start": rng.choice([0.0, 3.0, 7.0], count),
        "delay": rng.choice([0.0, 0.5], count),
        "cap": rng.choice([0.3 if seed % 2 else np.inf, np.inf, np.inf], count),
        "pair": np.where(rng.random(count) < 0.2, rng.integers(0, 4, count), -1),
        "tag": np.arange(count),
    }
    batch = TransferBatch(tasks(count, **columns), pad_routes(routes), before.copy(), after.copy())
    network = FluidNetwork(rng.choice([1.0, 2.0, 3.3], 9), width=4, tags=count + 40)
    network.post(0.0, batch)
    items = TransferBatch(
        tasks(40, work=rng.choice([1.0, 2.0], 40), tag=np.arange(count, count + 40), last_of=0),
        pad_routes(routes[:40]),
    )
    items.tasks["after"][::2] = network.open_queues(1)
    groups = network.open_groups(1, 20)
    items.tasks["group"][:-2:2] = groups[1:]
    network.set_sequels(groups, network.park(items, 20))
    network.count_down(groups[:1], 0.0)
    network.advance(np.inf)
    network.settle()
    names = ("work", "nbytes", "busy", "peak")
    return [*network.finish.tolist(), *(x for name in names for x in network.links[name].tolist())]


def packet_ends(seed):
    """When messages on a tree end, some of which wait for others (s)."""
    rng = np.random.default_rng(seed)
    count = 40
    ends = [rng.choice(4, 2, replace=False) for _ in range(count)]
    routes = [[a, 4, 5 + b] for a, b in ends]  # all meet on link 4
    after = [[int(rng.integers(0, i))] if i and rng.random() < 0.3 else [] for i in range(count)]
    flows = Flows.from_lists(routes, rng.uniform(0, 3e4, count), rng.uniform(0, 1e-6, count), after)
    links = Links(rng.choice([1e9, 2e9], 9), np.full(9, 1e-7))
    return Packet(mtu="4 KiB", port_buffer="8 KiB").finish_times(links, flows).finish.tolist()


ENDS = {"fluid": fluid_ends, "packet": packet_ends}

if __name__ == "__main__":
    compiling.entry = plain_entry
    compiling.compiled = compiling.reducing = as_it_is
    compiling.at_address = plain_at_address
    compiling.intrinsic = nothing_for
    np.seterr(all="ignore")
    sys.stdout.write(json.dumps(ENDS[sys.argv[1]](int(sys.argv[2]))))
