"""The fluid network against SimGrid 4.1 on the same links and flows
(tests/golden/simgrid/README.md)."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.case import read_case
from tests.explicit import finish_times

CASES = sorted((Path(__file__).parent.parent / "golden" / "simgrid").glob("*.json.gz"))


def test_all_cases_are_there():
    assert len(CASES) == 13


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_flow_ends_when_simgrid_says(path):
    case = read_case(path)
    outcome = Fluid().finish_times(case.links, case.flows)
    np.testing.assert_allclose(outcome.finish, case.expected, rtol=1e-9)
    assert outcome.makespan == pytest.approx(case.metadata["makespan"], rel=1e-9)


@pytest.mark.parametrize("name", ["p1_w2_32", "p2_w3_512", "torus_w2_27"])
def test_the_order_of_the_flows_changes_nothing(name):
    case = json.loads(
        gzip.decompress(next(p for p in CASES if p.name.startswith(name)).read_bytes())
    )
    links, flows = case["links"], case["flows"]
    order = np.random.default_rng(7).permutation(len(flows["size"]))
    ends = finish_times(
        links["capacity"],
        links["latency"],
        [flows["route"][i] for i in order],
        np.array(flows["size"])[order],
        np.array(flows["start"])[order],
    )
    np.testing.assert_allclose(ends, np.array(flows["end"])[order], rtol=1e-9)
