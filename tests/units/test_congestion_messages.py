"""The comparison of exchange patterns with what messages cost, and on the wire alone: tables,
verdicts, what is said, and results of versions that had the wire alone."""

import json

import numpy as np
import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.studies.congestion import verb
from simshuffle.studies.congestion.study import STUDY, request
from simshuffle.studies.congestion.verb import CongestionOptions
from simshuffle.study import engine
from simshuffle.study.registry import read_folder
from tests.units.test_congestion import VALUES

FREE = {"latency": "0 s", "overhead": "0 s", "copy_limit": "0 B", "eager_limit": "1 TB"}
PATTERNS = ("all_to_all", "random_permutations", "pairing_random")


def result(costs=None, **settings):
    values = VALUES | ({"cluster.message_passing": costs} if costs else {})
    scenario = load_scenario("quickstart", values)
    few = {"pattern": PATTERNS, "network": ("fluid",), "seeds": 2} | settings
    return engine.run(STUDY, request(CongestionOptions(scenario="quickstart", **few), [scenario]))


def said(result):
    parts = [*STUDY.details(result), *STUDY.parts(result)]
    return "\n".join(part for part in parts if isinstance(part, str))


@pytest.fixture(scope="module")
def counted():
    return result()


def test_without_messages_all_numbers_are_those_of_the_wire_to_the_last_bit(counted):
    free, alone = result(FREE), result(wire_only=True)
    times = counted.tables["times"]
    assert (times["time_s"] > times["wire_s"]).all()
    wire = {
        **counted.tables,
        "times": times.assign(**dict.fromkeys(("time_s", "low_s", "high_s"), times["wire_s"])),
    }
    for name, table in wire.items():
        assert table.equals(alone.tables[name]), name
        assert table.equals(free.tables[name]), name
    assert set(free.derived["verdicts"]["counted"]) == {"wire"}
    assert "Messages cost nothing here" in said(free)
    assert "The cost of messages is left out: all times are times on the wire." in said(alone)
    assert "barriers cost nothing here but waiting" in said(alone)
    assert "barriers cost nothing here" not in said(counted)


def test_what_a_message_costs_is_said_with_its_source(counted):
    sourced = result({"latency": "2 us", "source": {"latency": "measured by hand"}}, seeds=1)
    cost = "A message of 197 kB (a sample) costs its hosts 1.5 us. It takes 3 trips of 2 us"
    assert cost in said(sourced)
    assert "latency 2 us (measured by hand); overhead 500 ns (default: estimate," in said(sourced)
    # one text for all
    assert "eager_limit 8.192 kB (example value" in said(counted)
    assert said(counted).count("example value") == 1


def test_links_steps_and_messages_multiply_to_the_ratio(counted):
    rows = counted.derived["comparisons"]
    times = counted.tables["times"]
    assert set(rows["counted"]) == {"messages", "wire"}
    assert (rows.loc[rows["counted"] == "wire", "messages"] == 1.0).all()
    row = rows[rows["b"] == "random_permutations sample barrier"].iloc[0]
    a = times[times["pattern"] == "all_to_all"]["time_s"].to_numpy()
    b = times[
        (times["pattern"] == "random_permutations")
        & (times["batching"] == "sample")
        & times["barrier"]
    ]["time_s"].to_numpy()
    product = row["links"] * row["steps"] * row["messages"]
    assert product == pytest.approx(np.exp(np.log(a / b).mean()))


def test_results_of_versions_that_had_the_wire_alone_are_read_and_asked_for_again(tmp_path):
    folder = tmp_path / "old"
    arguments = ["quickstart", "--wire-only", "--seeds", "1", "--network", "analytic"]
    values = (part for key, value in VALUES.items() for part in ("--set", f"{key}={value}"))
    assert main(["congestion", *arguments, *values, "--out", str(folder)]) == 0
    new = read_folder(folder)
    times = pd.read_csv(folder / "times.csv").drop(columns=["wire_s", "low_s", "high_s"])
    times.to_csv(folder / "times.csv", index=False)
    sets = pd.read_csv(folder / "sets.csv").drop(columns="port_s")
    sets.to_csv(folder / "sets.csv", index=False)
    meta = json.loads((folder / "meta.json").read_text())
    del meta["settings"]["wire_only"]
    (folder / "meta.json").write_text(json.dumps(meta))
    old = read_folder(folder)
    assert old.tables["times"].equals(new.tables["times"])
    ports = ("through a port on average, ", "")  # of which earlier versions knew the busiest
    assert [line.split(": ")[0] for line in said(old).splitlines()] == [
        line.replace(*ports).split(": ")[0] for line in said(new).splitlines()
    ]
    assert "through a port on average" not in said(old)
    assert all(job.wire_only for job in verb.repeat(folder, old.meta).values)
