"""Runs side by side: the same bytes as one after another, and tables that are in memory once."""

import numpy as np
import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.results.timeline import PHASES, Timeline, concatenate, phase_rows, phase_table
from simshuffle.study import executors
from tests.contents import contents

SMALL = [
    *("--set", "workload.dataset.num_samples=1600", "--set", "epochs=1"),
    *("--set", "sweep={world_size: [4, 8], workload.exchange: [local_shuffle,"
      " 'partial_local_shuffle:exchange_fraction=0.3', 'global_shuffle:source=ssd']}"),
]  # fmt: skip


@pytest.mark.parametrize("words", [["run"], ["run", "--seeds", "2"], ["sweep"]], ids="-".join)
def test_two_processes_write_the_same_bytes_as_one(words, tmp_path, monkeypatch):
    """All files: tables, figures, what is said of them; of meta.json but how it was made."""
    used = []
    of = executors.Processes.do
    monkeypatch.setattr(executors, "WORTH_PROCESSES", 0.0)
    monkeypatch.setattr(
        executors.Processes, "do", lambda *given: (used.append(given[0].count), of(*given))[1]
    )
    verb, *more = words
    for count in (1, 2):
        # places of their own, so that nothing is found there
        out = tmp_path / str(count) / "out"
        more_words = [*more, "--processes", str(count), "--out", str(out), "-q"]
        assert main([verb, "quickstart", *SMALL, *more_words]) == 0
    assert used == [2]
    one, two = (contents(tmp_path / str(count) / "out") for count in (1, 2))
    assert len(one) > 5
    assert one == two


def rows(count, epoch=1):
    """A phases table of one run, whose columns are pieces of memory of their own."""
    bounds = np.cumsum(np.ones((count, 4, 6)), axis=2)
    return phase_table("", [phase_rows(epoch, list(PHASES[:5]), bounds, bounds[..., 1:])])


def test_joined_tables_hold_the_rows_of_all_in_their_order():
    parts = [rows(2, 1), rows(3, 2)]
    parts = [
        of.assign(run=of["run"].cat.rename_categories([n]))
        for of, n in zip(parts, "ba", strict=True)
    ]
    links = pd.DataFrame({"run": pd.Categorical(["b"]), "tier": pd.Categorical(["x"])})
    others = pd.DataFrame({"run": pd.Categorical(["a"]), "tier": pd.Categorical(["w"])})
    wanted = {name: [*parts[0][name], *parts[1][name]] for name in parts[0]}
    dtypes = {name: parts[0][name].dtype for name in parts[0] if name != "run"}
    found = concatenate(
        [
            Timeline(parts[0].copy(), links, links.copy()),
            Timeline(parts[1].copy(), others, others.copy()),
        ]
    )
    assert {name: list(found.phases[name]) for name in found.phases} == wanted
    assert {name: found.phases[name].dtype for name in dtypes} == dtypes
    assert list(found.phases["run"].cat.categories) == ["b", "a"]
    assert list(found.links["tier"]) == ["x", "w"]
    assert list(found.links["tier"].cat.categories) == ["x", "w"]


def test_ctrl_c_says_what_is_kept_and_nothing_else(tmp_path, monkeypatch, capsys):
    of = executors.Here.do

    def stopped(self, cells, store, watch):
        yield from of(self, dict(list(cells.items())[:2]), store, watch)
        raise KeyboardInterrupt

    monkeypatch.setattr(executors.Here, "do", stopped)
    words = ["run", "quickstart", *SMALL, "--processes", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 130
    told = "Interrupted. 2 of 6 runs are kept; the same command goes on with them."
    assert capsys.readouterr().err.splitlines()[-1] == told
    assert [path.name for path in tmp_path.iterdir()] == [".cells"]
    monkeypatch.undo()
    assert main(words) == 0
    assert "2 of 6 runs are there already." in capsys.readouterr().err
