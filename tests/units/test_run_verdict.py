"""The verdict on runs: from tables made by hand, and the same in every place of a result."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.results.report import EPOCH_COLUMNS
from simshuffle.studies.simulation.study import STUDY
from simshuffle.studies.simulation.text import _undivided
from simshuffle.studies.simulation.verdict import compared, longer, of_sweep, verdict
from simshuffle.study.study import Result


def epochs(*rows, last=1, **same):
    """Rows of the epochs table, each (run, ranks, seconds, half); 64,000 samples an epoch."""
    out = []
    for run, ranks, seconds, half in rows:
        for epoch in range(1, last + 1):
            row = dict.fromkeys(EPOCH_COLUMNS, 0.0)
            row |= {"run": run, "world_size": ranks, "epoch": epoch, "epoch_s": seconds}
            row |= {"epoch_high_s": seconds + half, "epoch_low_s": seconds - half}
            row |= {"samples_per_s": 64e3 / seconds, "exchange_fraction": float("nan")}
            row |= {"iterations": 10, "iterations_simulated": 10, **same}
            out.append(row)
    return pd.DataFrame(out)


def result(table, parts, links):
    """A result of these epochs; ``parts`` are (run, label, cause, seconds) and ``links`` (run,
    tier, share in use) of the last one."""
    last = table["epoch"].max()
    breakdown = pd.DataFrame(parts, columns=["run", "label", "cause", "seconds"])
    used = pd.DataFrame(links, columns=["run", "tier", "mean_utilisation"])
    tables = {
        "epochs": table,
        "breakdown": breakdown.assign(epoch=last),
        "links": used.assign(epoch=last),
    }
    runs = {run: {"routing": "d_mod_k"} for run in table["run"].unique()}
    return Result(STUDY, tables, {"runs": runs}, {})


PFS, LOCAL = ("global-pfs @64", 64, 22.0, 0.0), ("local @64", 64, 5.0, 0.0)
PARTS = [
    *(("local @64", "I/O", "", 0.5), ("local @64", "FW+BW", "", 4.5)),
    *(("global-pfs @64", "I/O", "", 7.0), ("global-pfs @64", "FW+BW", "I/O", 10.5)),
    ("global-pfs @64", "FW+BW", "", 4.5),
]
LINKS = [
    *(("global-pfs @64", "pfs.open", 0.97), ("global-pfs @64", "leaf>spine", 1.0)),
    *(("global-pfs @64", "pfs.bandwidth", 0.5), ("local @64", "ssd", 0.1)),
]


def test_the_fastest_the_difference_and_what_binds_are_named():
    """22 s are 4.4 times 5 s; of the 17 s between them 6.5 s are reading and 10.5 s waiting for
    ranks that read; the cable is busier than the opens, and is no part of reading."""
    said = verdict(result(epochs(PFS, LOCAL), PARTS, LINKS))
    assert said == [
        "On 64 ranks local is fastest, 5 s an epoch; global-pfs takes 4.4 times as long.",
        "What global-pfs takes longer is reading, bound by file opens of the file system, in use"
        " for 97 % of the epoch.",
        "Rests on one epoch, one seed (--seeds gives intervals) and routing d_mod_k; errors of"
        " inputs and model are in no interval (--interval adds them).",
    ]


def test_a_resource_that_is_seldom_in_use_binds_nothing():
    links = [("global-pfs @64", "pfs.open", 0.34)]
    assert (
        "What global-pfs takes longer is reading. The busiest resource of it, file opens of the"
        " file system, is in use for 34 %."
    ) in verdict(result(epochs(PFS, LOCAL), PARTS, links))


def test_a_difference_of_several_causes_says_how_much_the_largest_is():
    """Of 2 s more, 1.5 s are the exchange."""
    table = epochs(("partial @64", 64, 7.0, 0.0), LOCAL)
    parts = [*PARTS[:2], ("partial @64", "EXCHANGE", "", 1.5), ("partial @64", "I/O", "", 1.0)]
    parts += [("partial @64", "FW+BW", "", 4.5)]
    said = verdict(result(table, parts, [("partial @64", "leaf>spine", 0.83)]))
    assert said[1] == (
        "What partial takes longer is for 75 % exchanging samples, bound by the busiest cable from"
        " leaf to spine, in use for 83 % of the epoch."
    )


@pytest.mark.parametrize(
    ("seconds", "half", "said"),
    [
        (5.06, 0.05, "b cannot be told apart from it"),  # 0.06 s apart, within 0.02 + 0.05
        (5.08, 0.05, "b takes 1.6 % longer"),
        (5.002, 0.0, "b cannot be told apart from it"),
    ],
)
def test_intervals_that_overlap_are_not_told_apart(seconds, half, said):
    table = epochs(("a @8", 8, 5.0, 0.02), ("b @8", 8, seconds, half))
    halves = (table["epoch_high_s"] - table["epoch_s"]).set_axis(
        pd.MultiIndex.from_frame(table[["run", "epoch"]])
    )
    first = of_sweep(table, halves, 1)[0]
    assert first == f"On 8 ranks a is fastest, 5.000 ± 0.020 s an epoch; {said}."


def test_equal_times_without_an_interval_are_equal():
    said = of_sweep(epochs(("a", 8, 5.0, 0.0), ("b", 8, 5.001, 0.0)), None, 1)
    assert said[0] == "On 8 ranks a is fastest, 5 s an epoch; b takes as long."


def test_epochs_of_other_lengths_are_compared_at_as_many_samples():
    """b reads half the samples in 0.6 times the time: 1.2 times as long for as many."""
    table = epochs(("a", 8, 10.0, 0.0), ("b", 8, 6.0, 0.0))
    table.loc[1, "samples_per_s"] = 32e3 / 6.0
    said = of_sweep(table, None, 1)
    assert said[0] == (
        "On 8 ranks a is fastest, 10 s an epoch, for as many samples as the longest epoch has;"
        " b takes 20 % longer."
    )
    assert [of.alike for of in compared(table, None)] == [False]


def test_scaling_is_said_of_runs_that_differ_in_ranks_alone():
    """8 times the ranks: 40 s to 10 s are 4 times the samples/s, 40 s to 8 s are 5 times."""
    table = epochs(
        *(("a @8", 8, 40.0, 0.0), ("a @64", 64, 10.0, 0.0)),
        *(("b @8", 8, 40.0, 0.0), ("b @64", 64, 8.0, 0.0)),
    )
    said = of_sweep(table, None, 3)
    assert said[:3] == [
        "On 64 ranks b is fastest, 8 s an epoch; a takes 25 % longer.",
        "On 8 ranks a is fastest; b takes as long.",
        "On 64 ranks in place of 8 (8 times) b trains on 5 times as many samples/s, a on 4 times.",
    ]
    assert said[3].startswith("Rests on one epoch and 3 seeds;")


def test_many_runs_are_not_all_named():
    table = epochs(*((f"r{n}", 8, 5.0 + n, 0.0) for n in range(9)))
    assert of_sweep(table, None, 1)[0] == (
        "On 8 ranks r0 is fastest, 5 s an epoch; r1 takes 20 % longer, r8 takes 2.6 times as long"
        " (6 more lie between)."
    )


def test_staging_and_a_cold_epoch_are_told_where_they_are_long():
    table = epochs(PFS, LOCAL, last=2)
    table["staging_s"] = [0.0, 0.0, 0.9, 0.0]
    table.loc[2, "epoch_s"] = 6.1
    said = " ".join(verdict(result(table, PARTS, LINKS)))
    assert "The first epoch takes longer than this one: local 22 % longer." in said
    assert "Copying" not in said
    table["staging_s"] = [0.0, 0.0, 60.0, 0.0]
    said = " ".join(verdict(result(table, PARTS, LINKS)))
    assert "Copying samples to the hosts comes before the first epoch: local 60 s." in said


def test_what_a_shard_costs_in_accuracy_is_said_to_be_left_out():
    """64,000 samples on 64 ranks."""
    said = of_sweep(epochs(LOCAL, exchange_fraction=0.0), None, 1)
    assert "a rank has a shard of 1,000 samples is not in it" in said[-1]


def test_reading_of_which_a_part_was_simulated_is_known_as_a_sum():
    """10.5 of 22 s are waiting for ranks that read; nothing is said where all was simulated."""
    said = "I/O and waiting for it are known together"
    for simulated, runs in ((10, []), (4, ["global-pfs @64"])):
        table = epochs(PFS, LOCAL, iterations_simulated=simulated)
        found = _undivided(result(table, PARTS, LINKS).tables)
        assert [line.partition(":")[0] for line in found if said in line] == runs


def test_ratios_in_words():
    assert [longer(of) for of in (1.005, 1.4, 1.5, 12.34, 1234.0)] == [
        *("0.5 % longer", "40 % longer", "1.5 times as long", "12 times as long"),
        "1,234 times as long",
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdict") / "out"
    small = ["--set", "world_size=8", "--set", "epochs=1", "--timeline", "none", "-q"]
    assert main(["run", "quickstart", *small, "--out", str(folder)]) == 0
    return folder


def test_the_same_sentences_stand_in_every_place(run, tmp_path, capsys):
    said = simshuffle.read(run).verdict()
    assert 2 <= len(said) <= 5
    whole = " ".join(said)
    assert re.match(r"On 8 ranks \S+ is fastest, ", whole)

    def printed(*words):
        capsys.readouterr()
        assert main([*words]) == 0
        return capsys.readouterr().out

    assert " ".join(printed("results", "show", str(run)).split()).startswith(whole)
    assert json.loads(printed("results", "show", str(run), "--json"))["verdict"] == said
    latex = whole.replace("%", "\\%").replace("--", "-{}-").replace("_", "\\_")
    for to, escaped in (("latex", latex), ("markdown", whole.replace("_", "\\_"))):
        assert escaped in printed("results", "show", str(run), "--to", to)
    page, figure = tmp_path / "page.html", tmp_path / "breakdown.svg"
    printed("report", str(run), "--out", str(page))
    assert page.read_text().count(f"<p>{whole}</p>") == 1
    assert whole in printed("figure", "breakdown", str(run), "--out", str(figure))
    assert latex in printed("figure", "breakdown", str(run), "--to", "latex")
