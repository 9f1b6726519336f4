"""Min-hop and D-mod-K beside the tables of OpenSM 3.3.23: recorded ones always, and live ones where
OpenSM and ibsim are."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.shared import HAS_EXTENSIONS

if not HAS_EXTENSIONS:
    pytest.skip("reads fabrics with an extension", allow_module_level=True)

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "opensm.py"


def loaded():
    spec = importlib.util.spec_from_file_location("opensm_compare", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


compare = loaded()
CASES = sorted(compare.CASES)
ids = " ".join


def shown(name, engine):
    """Return the entries, and the share that is equal, of a row of tests/data/opensm/README.md."""
    page = (compare.KEPT / "README.md").read_text()
    row = re.search(rf"^\| `{name}` \| `{engine}` \|.*\| ([\d,]+) \| ([\d.]+) % \|", page, re.M)
    return int(row[1].replace(",", "")), float(row[2])


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_every_entry_is_that_of_opensm(case):
    found = compare.compared(*case, again=False)
    assert found.entries > 1000
    assert found.equal == found.entries
    assert shown(*case) == (found.entries, 100.0)


@pytest.mark.parametrize("case", sorted(compare.NOTED), ids=ids)
def test_where_they_differ_the_page_says_how_far(case):
    found = compare.compared(*case, again=False)
    assert shown(*case) == (found.entries, round(100 * found.equal / found.entries, 1))


@pytest.mark.parametrize("case", sorted(compare.CASES | compare.NOTED), ids=ids)
def test_opensm_still_computes_what_was_recorded(case):
    if without := compare.missing_programs():
        pytest.skip(f"not on PATH: {', '.join(without)}")
    assert compare.compared(*case, again=True) == compare.compared(*case, again=False)


@pytest.mark.parametrize("name", compare.MADE)
def test_the_nets_are_those_that_are_made_now(name):
    """Up to the names of the form: the network is the same."""
    text = compare.ibsim.format_net_file(compare.fabric_of_network(compare.MADE[name](), name))
    assert text == compare.net_of(name)
