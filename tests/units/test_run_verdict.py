"""The verdict on runs: from tables made by hand, and the same in every place of a result."""

import re

import pandas as pd
import pytest
import yaml

import simshuffle
from simshuffle.cli import main
from simshuffle.report.report import EPOCH_COLUMNS, LABELS
from simshuffle.studies.simulation.causes import Causes, _find_slowest_pair, causes_of_sweep
from simshuffle.studies.simulation.contest import (
    Scale,
    SweptInput,
    inputs_of_run,
    inputs_of_sweep,
    is_close,
    overlaps_widely,
    read_quantity,
    scales_of,
    table_by_run,
    ties,
    warm_epochs,
)
from simshuffle.studies.simulation.ranking import describe_ratio, list_names, rank_runs
from simshuffle.studies.simulation.runs import HIDDEN_TOLERANCE
from simshuffle.studies.simulation.study import STUDY
from simshuffle.studies.simulation.tables import (
    Means,
    epoch_lengths,
    find_measure_problems,
    half_of_window,
    label_column,
    last_epochs,
    mean_epochs,
    means_over_seeds,
    measure_name,
    measures_of_epochs,
)
from simshuffle.studies.simulation.text import _describe_unknown_division
from simshuffle.studies.simulation.verdict import describe_basis, describe_hidden_fraction, verdict
from simshuffle.studies.simulation.warm import (
    _choose_rows,
    format_epoch,
    format_three_digits,
)
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict


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
        "links": used.assign(epoch=last, nbytes=0.0, capacity=1.0),
    }
    runs = {run: {"routing": "d_mod_k"} for run in table["run"].unique()}
    return Result(STUDY, tables, {"runs": runs}, {})


def answer(*rows, inputs=(), found=None, samples=None, **same):
    """The answer on these rows, as of `epochs`; ``samples`` of the run in each row."""
    table = epochs(*rows, **same)
    if samples is not None:
        table["samples_per_s"] = [n / of for n, of in zip(samples, table["epoch_s"], strict=True)]
    scales = scales_of(warm_epochs(table, half_of_window(table)), inputs)
    return rank_runs(scales, Causes({}), found)


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
    assert verdict(result(epochs(PFS, LOCAL), PARTS, LINKS)) == Verdict(
        ["64 ranks: local is fastest, 5 s an epoch; global-pfs takes 4.4 times as long (reading)."],
        why="the extra time of global-pfs on 64 ranks is reading, bound by file opens of the file"
        " system (97 % of its capacity in use); with the waits that it causes, reading takes 17.5 s"
        " of 22 s.",
        rests_on="one epoch and one seed.",
        measure_next="chance (--seeds 3) and errors of inputs and laws (--interval).",
    )


def test_a_resource_that_is_seldom_in_use_binds_nothing():
    links = [("global-pfs @64", "pfs.open", 0.34)]
    assert verdict(result(epochs(PFS, LOCAL), PARTS, links)).why == (
        "the extra time of global-pfs on 64 ranks is reading (its busiest resource, file opens of"
        " the file system, is 34 % of its capacity in use); with the waits that it causes,"
        " reading takes 17.5 s of 22 s."
    )


def test_a_difference_of_several_causes_says_how_much_the_largest_is():
    """Of 2 s more, 1.5 s are the exchange."""
    table = epochs(("partial @64", 64, 7.0, 0.0), LOCAL)
    parts = [*PARTS[:2], ("partial @64", "EXCHANGE", "", 1.5), ("partial @64", "I/O", "", 1.0)]
    parts += [("partial @64", "FW+BW", "", 4.5)]
    said = verdict(result(table, parts, [("partial @64", "leaf>spine", 0.83)]))
    assert said.answer[0].endswith("; partial takes 40 % longer (exchanging samples).")
    assert said.why == (
        "75 % of the extra time of partial on 64 ranks is exchanging samples, bound by the busiest"
        " cable from leaf to spine (83 % of its capacity in use)."
    )


RATES = SweptInput("open_rate", {"12k/s": 12e3, "25k/s": 25e3, "50k/s": 50e3, "100k/s": 100e3})


@pytest.mark.parametrize(
    ("seconds", "half", "wide", "tie", "close"),
    [
        # half a per cent of 100 s without intervals, and one per cent for what is close
        (100.5, 0.0, False, True, True),
        (100.6, 0.0, False, False, True),
        (101.0, 0.0, False, False, True),
        (101.1, 0.0, False, False, False),
        # half intervals of 1 s and of 3 s: at most 5 s together are narrow
        (104.0, 1.0, False, True, True),
        (104.1, 1.0, False, False, False),
        (105.0, 2.0, False, True, True),
        (105.1, 2.0, False, False, False),
        (103.0, 2.5, True, False, False),
        (105.5, 2.5, True, False, False),
        (105.6, 2.5, False, False, False),
    ],
)
def test_a_gap_is_a_tie_within_narrow_intervals(seconds, half, wide, tie, close):
    fastest = {"run": "a", "epoch_s": 100.0, "half": 3.0 if half else 0.0}
    row = {"run": "b", "epoch_s": seconds, "half": half}
    assert overlaps_widely(row, fastest) is wide
    assert ties(row, fastest) is tie
    assert is_close(row, fastest) is close
    # a run is itself, however wide its interval
    same = {**fastest, "half": 50.0}
    assert not overlaps_widely(same, same) and ties(same, same)


def swept_result(label=""):
    """Return a result of `sweep`: strategies at two sizes and two numbers of workers."""
    rows = [
        ("global", 4, 25_000.0, "a.b=25000 @4"),
        ("local", 4, 1.5, "a.b=1.5 @4"),
        ("local", 8, 25_000.0, "else"),
    ]
    table = pd.DataFrame(rows, columns=["exchange", "world_size", "x.rate", "label"])
    table = table.assign(strategy="s", word=["on", "off", "on"])
    axes = [
        {"name": "exchange", "key": "workload.exchange", "numbers": False},
        {"name": "world_size", "key": "world_size", "numbers": True},
        {"name": "x.rate", "key": "cluster.x.rate", "numbers": True},
        {"name": "word", "key": "workload.word", "numbers": False},
    ]
    return Result(STUDY, {"sweep": table}, {"axes": axes, "label": label}, {})


def test_axes_of_a_sweep_are_inputs_and_names_of_its_own_are_made_anew():
    rate, word = inputs_of_sweep(swept_result())
    assert (rate.name, word.name) == ("rate", "word")
    assert rate.number_of == {"25000": 25e3, "1.5": 1.5} and rate.is_number
    assert word.number_of == {"on": None, "off": None} and not word.is_number
    plain, named = table_by_run(swept_result()), table_by_run(swept_result("mine"))
    assert plain["run"].tolist() == ["a.b=25000 @4", "a.b=1.5 @4", "else"]
    assert named["run"].tolist() == [
        "global rate=25000 word=on @4",
        "local rate=1.5 word=off @4",
        "local rate=25000 word=on @8",
    ]
    assert "label" not in named and "label" not in plain
    without = swept_result("mine")
    del without.meta["axes"][0]
    assert table_by_run(without)["run"][0] == "s rate=25000 word=on @4"


def test_a_number_of_a_sweep_has_the_text_of_its_names():
    """A number such as 25000.0 is as the labels have it; of two numbers that are one, none is."""
    result = swept_result()
    table = result.tables["sweep"].assign(label=["rate=25000.0 @4", "rate=1.5 @4", "rate=2 @8"])
    changed = Result(STUDY, {"sweep": table}, result.meta, {})
    assert [*inputs_of_sweep(changed)[0].number_of] == ["25000.0", "1.5"]
    assert not SweptInput("rate", {"1": 1.0}).is_number
    assert not SweptInput("rate", {"1": 1.0, "1.0": 1.0}).is_number
    assert not SweptInput("rate", {"1": 1.0, "a": None}).is_number


def test_swept_keys_of_stored_scenarios_are_inputs():
    sweep = {"world_size": [1, 2], "a.rate": ["2 GB/s", "1 kB/s"], "seed": [1], "b.rate": [3]}
    text = yaml.safe_dump_all([{"sweep": sweep}, {"sweep": {"c.word": ["x"]}}, {}])
    rate, word = inputs_of_run(Result(STUDY, {}, {}, {"scenario.yaml": text}))
    assert (rate.name, word.name) == ("rate", "word")
    assert list(rate.number_of.values()) == [2e9, 1e3, 3.0]
    assert word.number_of == {"x": None}
    assert inputs_of_run(Result(STUDY, {}, {}, {})) == []
    assert inputs_of_run(Result(STUDY, {}, {}, {"scenario.yaml": "a: ["})) == []


def test_seconds_of_a_sweep_by_cause_are_means_of_the_last_epochs():
    """Two seeds of the second epoch: 2 and 4 s of reading with 1 s of waits for it, 5 s of passes,
    and 3 s of waits for ranks that compute."""
    columns = [label_column(label, waiting) for waiting in (False, True) for label in LABELS]
    table = pd.DataFrame([dict.fromkeys(columns, 0.0) for _ in range(3)])
    table = table.assign(run="a", epoch=[1, 2, 2])
    table[label_column("I/O")] = [99.0, 2.0, 4.0]
    table[label_column("I/O", waiting=True)] = 1.0
    table[label_column("FW+BW")] = 5.0
    table[label_column("FW+BW", waiting=True)] = [99.0, 2.0, 4.0]
    rows = pd.DataFrame({"run": ["a"], "epoch": [2]})
    seconds = causes_of_sweep(table, rows).seconds["a"]
    expected = {**dict.fromkeys(LABELS, 0.0), "I/O": 4.0, "FW+BW": 5.0, "waiting": 3.0}
    assert seconds == expected


def test_the_slowest_run_is_sought_at_one_value_or_over_all():
    """At 1 the ratio is 3, at 2 it is 2: the pair of 1 is taken, though both of 2 are longer."""
    rows = pd.DataFrame(
        [("a", 1, 1.0), ("b", 1, 3.0), ("a", 2, 10.0), ("b", 2, 20.0)],
        columns=["name", "x", "epoch_s"],
    )

    def pair(scale):
        return tuple(row["epoch_s"] for row in _find_slowest_pair(scale))

    assert pair(Scale("t", rows, "x")) == (3.0, 1.0)
    assert pair(Scale("t", rows)) == (20.0, 1.0)
    assert pair(Scale("t", rows[rows["name"] == "a"], "x")) == (10.0, 1.0)


def test_a_table_of_many_runs_has_the_fastest_and_the_slowest_of_each_size():
    """Of 30 runs at two sizes 24 stay: eleven of each, and the slowest. The first is slowest."""
    rows = pd.DataFrame({"world_size": [4, 8] * 15, "epoch_s": [30.0 - n for n in range(30)]})
    chosen = _choose_rows(rows)
    assert chosen.index.tolist() == [0, 1, *range(8, 30)]
    assert len(_choose_rows(rows, 30)) == 30 and len(_choose_rows(rows.head(24))) == 24
    # at 13 sizes two of each, of which the last 24 stay
    many = pd.DataFrame({"world_size": [n // 3 for n in range(39)], "epoch_s": [1.0, 3, 2] * 13})
    assert _choose_rows(many).index.tolist() == [n for n in range(3, 39) if n % 3 < 2]


def test_seconds_have_three_digits():
    seconds = {1e-4: "-", 0.0123: "0.012", 1.234: "1.23", 12.34: "12.3", 123.4: "123"}
    for value, text in {**seconds, 1234.0: "1,234"}.items():
        assert format_three_digits(value) == text
    assert format_epoch({"epoch_s": 12.3456, "half": 0.0}) == "12.35"
    assert format_epoch({"epoch_s": 12.3456, "half": 0.1}) == "12.35 ± 0.10"


def of_seeds(*seconds, run="a", epoch=1):
    """Rows of epochs of one run and epoch, a seed each, with 3 s of staging times the seed."""
    tables = [epochs((run, 4, value, 0.0)).assign(seed=n) for n, value in enumerate(seconds, 1)]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(epoch=epoch, staging_s=3.0 * table["seed"], iterations=10 + table["seed"])


def test_epochs_over_seeds_by_hand():
    """1 and 3 s: 2 s, and t of one degree of freedom, 12.706, times sqrt(2) / sqrt(2)."""
    table = pd.concat([of_seeds(1.0, 3.0), of_seeds(5.0, 5.0, run="b")], ignore_index=True)
    means, half, seeds = mean_epochs(table)
    assert (means["epoch_s"].tolist(), seeds) == ([2.0, 5.0], 2)
    assert means["staging_s"].tolist() == [4.5, 4.5]
    assert means["iterations"].tolist() == [11, 11]  # of the first seed
    assert half.loc[("a", 1), "epoch_s"] == pytest.approx(12.706, rel=1e-4)
    assert half.loc[("a", 1), "staging_s"] == pytest.approx(1.5 * 12.706, rel=1e-4)
    assert half.loc[("b", 1), "epoch_s"] == 0.0
    fewer = pd.concat([of_seeds(1.0, 3.0), of_seeds(5.0, run="b")], ignore_index=True)
    assert mean_epochs(fewer)[2] == 2
    whole = Means(means, pd.DataFrame(), half, seeds).whole_epochs()
    assert whole["seconds"].tolist() == [2.0, 5.0]
    assert whole["half"].tolist() == pytest.approx([12.706, 0.0], rel=1e-4)


def test_labels_over_seeds_count_as_nothing_where_a_seed_has_none():
    table = of_seeds(1.0, 3.0)
    parts = pd.DataFrame(
        [("a", 1, 1, "I/O", "", 4.0), ("a", 1, 2, "FW+BW", "I/O", 6.0)],
        columns=["run", "epoch", "seed", "label", "cause", "seconds"],
    )
    found = means_over_seeds(table, parts).breakdown
    rows = set(found[["label", "cause", "seconds"]].itertuples(index=False, name=None))
    assert rows == {("I/O", "", 2.0), ("FW+BW", "I/O", 3.0)}
    one = means_over_seeds(table.drop(columns="seed"), parts)
    assert one.half_intervals is None and one.breakdown is parts


def test_columns_of_labels_are_own_work_and_waiting_for_it():
    table = epochs(("a", 4, 9.0, 0.0), last=2)
    parts = pd.DataFrame(
        [
            ("a", 1, "I/O", "", 4.0),
            ("a", 2, "I/O", "", 1.0),
            ("a", 2, "FW+BW", "I/O", 2.0),
            ("a", 2, "FW+BW", "", 3.0),
        ],
        columns=["run", "epoch", "label", "cause", "seconds"],
    )
    found = measures_of_epochs(table, parts)
    assert found["io_s"].tolist() == [4.0, 1.0]
    assert found["wait_io_s"].tolist() == [0.0, 2.0]
    assert found["fw_bw_s"].tolist() == [0.0, 3.0] and found["wait_fw_bw_s"].tolist() == [0, 0]


def test_the_last_epoch_of_each_run_and_its_length():
    table = epochs(("b", 4, 8.0, 0.0), ("a", 4, 4.0, 0.0), last=3).iloc[::-1]
    assert last_epochs(table)[["run", "epoch"]].to_numpy().tolist() == [["a", 3], ["b", 3]]
    lengths = epoch_lengths(table, ["run", "epoch"])
    assert lengths.loc[("b", 2)].tolist() == [64e3, 10.0, 8e3]


@pytest.mark.parametrize(
    ("measure", "name", "num_problems"),
    [
        ("epoch_s", "time per epoch (s)", 0),
        ("epoch_s/iterations", "time per iteration (s)", 0),
        ("epoch_s/world_size", "time per GPU (s)", 0),
        ("samples_per_s", "samples (1/s)", 0),
        ("io_s/iterations", "io per iteration (s)", 0),
        ("iterations", None, 1),
        ("epoch_s/epoch", None, 1),
        ("nothing/epoch", None, 2),
        ("epoch_s/", None, 1),
    ],
)
def test_measures_are_columns_over_counts(measure, name, num_problems):
    assert len(find_measure_problems(measure)) == num_problems
    if name:
        assert measure_name(measure) == name


def test_many_scales_are_not_all_said():
    scales = answer(
        *((f"{x} @{n}", n, of, 0.0) for n in range(1, 13) for x, of in (("a", 1.0), ("b", 2.0)))
    )
    assert len(scales) == 9 and scales[-1] == "4 more scales lie between; the table has them."
    assert scales[0].startswith("1 rank: a is fastest") and scales[7].startswith("12 ranks: ")


def test_of_two_swept_numbers_the_one_with_more_values_is_compared_across():
    batch = SweptInput("local_batch_size", {"32": 32.0, "64": 64.0})
    rows = [
        (f"{run} @{ranks} open_rate={rate} local_batch_size={size}", ranks, of, half)
        for size, times in ((32, 1.0), (64, 1.5))
        for name, base in (("a", (200.0, 100.0, 100.0, 100.0)), ("b", 4 * (100.0,)))
        for (run, ranks, of, half), rate in zip(
            [(name, 64, times * each, 0.0) for each in base], RATES.number_of, strict=True
        )
    ]
    assert [line.partition(":")[0] for line in answer(*rows, inputs=[batch, RATES])] == [
        "64 ranks, local batch size 32",
        "64 ranks, local batch size 64",
    ]


def test_runs_without_the_swept_number_are_ranked_by_themselves():
    """Of two documents only one sweeps the rate: local halves from 20 s to 10 s, and the two
    runs of the other, 30 s and 15 s, have no rate to be compared at."""
    swept = [
        (f"local @8 open_rate={rate}", 8, of, 0.0) for rate, of in (("12k/s", 20), ("25k/s", 10))
    ]
    fixed = [("global-pfs @8", 8, 30.0, 0.0), ("partial @8", 8, 15.0, 0.0)]
    local = (
        "8 ranks: local takes 20 s at open rate 12k/s and 10 s at 25k/s an epoch; no other value is"
        " within 1 % of the best."
    )
    assert answer(*swept, *fixed, inputs=[RATES]) == [
        local,
        "8 ranks: partial is fastest, 15 s an epoch; global-pfs takes 2 times as long.",
    ]
    alone = answer(*swept, ("local @16", 16, 10.0, 0.0), inputs=[RATES])
    assert alone == [local, "16 ranks: local takes 10 s an epoch, 6,400 samples/s."]


def test_the_slowest_run_is_found_where_no_run_has_the_swept_number():
    """At 16 ranks nothing is swept: global-pfs takes 3 s of reading longer than local."""
    table = epochs(
        *((f"local @8 open_rate={rate}", 8, 9.0, 0.0) for rate in ("12k/s", "25k/s")),
        *(("local @16", 16, 5.0, 0.0), ("global-pfs @16", 16, 8.0, 0.0)),
    )
    scales = scales_of(warm_epochs(table, None), [RATES])
    causes = Causes({"local @16": {"I/O": 1.0}, "global-pfs @16": {"I/O": 4.0}})
    assert causes.explain_time(scales).startswith(
        "the extra time of global-pfs on 16 ranks is reading; "
    )


def test_words_that_are_swept_tell_competitors_apart():
    kinds = SweptInput("kind", {"ring": None, "tree": None})
    rows = ("local @8 kind=ring", 8, 5.0, 0.0), ("local @8 kind=tree", 8, 6.0, 0.0)
    assert answer(*rows, inputs=[kinds]) == [
        "8 ranks: local kind=ring is fastest, 5 s an epoch; local kind=tree takes 20 % longer."
    ]


def test_a_swept_fraction_is_a_number():
    """Q of 0.1, 0.5 and 1: 1.005 and 1.2 times as long as the first."""
    table = epochs(
        *((f"partial-{q} @8", 8, of, 0.0) for q, of in ((0.1, 10), (0.5, 10.05), (1, 12)))
    )
    table["exchange_fraction"] = [0.1, 0.5, 1.0]
    fraction = SweptInput("exchange_fraction", {"0.1": 0.1, "0.5": 0.5, "1": 1.0})
    assert rank_runs(scales_of(warm_epochs(table, None), [fraction]), Causes({})) == [
        "8 ranks: partial takes 10 s at exchange fraction 0.1 and 12 s at 1 an epoch; up to 0.5,"
        " it is within 1 % of the shortest, 10 s."
    ]


def test_an_order_that_is_not_sure_says_in_how_many_draws_it_holds():
    found = {"odds": [{"first": "local @64", "second": "global-pfs @64", "share": 0.71}]}
    said = answer(PFS, LOCAL, found=found)
    assert said[0].endswith("global-pfs takes 4.4 times as long (71 % sure).")


def test_quantities_of_a_sweep_are_numbers():
    texts = ("12k/s", "2 GB/s", "90 ns", "3 MiB", "0.5", "ring")
    assert [read_quantity(text) for text in texts] == [12e3, 2e9, 90e-9, 3 * 2**20, 0.5, None]


def test_names_of_one_stem_are_drawn_together():
    assert list_names(["local", "partial-0.1", "partial-0.3"]) == "local and partial-0.1/0.3"
    assert list_names(list("abcdefg")) == "a, b, c, d and 3 more"


# --------------------------------------------------------------------------------- causes


def test_waiting_for_a_host_is_named_with_its_fault():
    """Of 16 s, 8.4 s are computing, 7.2 s waiting for h0003 and 0.4 s for others."""
    table = epochs(("local @64", 64, 16.0, 0.0))
    parts = [("local @64", "FW+BW", "", 8.4), ("local @64", "GE+WU", "FW+BW", 7.6)]
    of = result(table, parts, [])
    of.meta["runs"]["local @64"] |= {
        "waited_for": [{"host": "h0003", "label": "FW+BW", "seconds": 7.2}],
        "faults": [
            {"what": "h0003.gpus", "rate": 0.5, "at_s": 2.0, "until_s": None}
            | {"links": 0, "gpus": 4, "rerouted": 0}
        ],
    }
    assert verdict(of).why == (
        "52 % of an epoch is the forward and backward pass and 45 % waiting for h0003, because"
        " of h0003.gpus at 50 % of its rate from 2 s (4 GPUs)."
    )
    del of.meta["runs"]["local @64"]["faults"]
    assert verdict(of).why.endswith("45 % waiting for h0003 (the forward and backward pass).")
    del of.meta["runs"]["local @64"]["waited_for"]
    assert verdict(of).why.endswith("and 48 % waiting for the slowest rank of each step.")


def test_a_share_of_half_a_per_cent_is_rounded_from_the_exact_quotient():
    """100 * 23 / 40 is 57.5, and 100 * (23 / 40) is less."""
    table = epochs(("local @64", 64, 40.0, 0.0))
    parts = [("local @64", "FW+BW", "", 23.0), ("local @64", "GE+WU", "FW+BW", 17.0)]
    assert verdict(result(table, parts, [])).why.startswith("58 % of an epoch is")


def test_a_run_that_loses_by_waiting_says_for_whom():
    table = epochs(("faulty @8", 8, 9.0, 0.0), ("local @8", 8, 5.0, 0.0))
    parts = [("local @8", "FW+BW", "", 5.0), ("faulty @8", "FW+BW", "", 5.0)]
    of = result(table, [*parts, ("faulty @8", "GE+WU", "I/O", 4.0)], [])
    of.meta["runs"]["faulty @8"]["waited_for"] = [{"host": "n7", "label": "I/O", "seconds": 4.0}]
    said = verdict(of)
    assert said.answer[0].endswith("faulty takes 1.8 times as long (waiting for n7).")
    assert said.why == "the extra time of faulty on 8 ranks is waiting for n7 (reading)."


def test_what_stays_hidden_is_a_line():
    of = {"32": {"fraction": 0.168, "schedule": "new"}, "8": {"fraction": 0.168, "schedule": "new"}}
    assert list(describe_hidden_fraction(of)) == [
        "An exchange of up to Q = 0.17 on 8 to 32 ranks stays hidden (an epoch at most"
        f" {100 * HIDDEN_TOLERANCE:.0f} % longer), by closed forms."
    ]
    of["32"]["fraction"] = 0.25
    assert "Q = 0.17 on 8 and 0.25 on 32 ranks stays" in next(iter(describe_hidden_fraction(of)))
    assert not list(describe_hidden_fraction({}))


def test_what_it_rests_on_is_one_line_of_a_terminal():
    rows = epochs(LOCAL, last=3, iterations_simulated=4)
    said = describe_basis(warm_epochs(rows, None), 5)
    assert said == "epoch 3 of 3, 5 seeds and a part of the iterations"


def test_reading_of_which_a_part_was_simulated_is_known_as_a_sum():
    """10.5 of 22 s are waiting for ranks that read; nothing is said where all was simulated."""
    said = "the sum of I/O and of waiting for I/O is known"
    for simulated, runs in ((10, []), (4, ["global-pfs @64"])):
        table = epochs(PFS, LOCAL, iterations_simulated=simulated)
        found = _describe_unknown_division(result(table, PARTS, LINKS).tables)
        assert [line.partition(":")[0] for line in found if said in line] == runs


def test_ratios_in_words():
    assert [describe_ratio(of) for of in (1.005, 1.4, 1.5, 12.34, 1234.0)] == [
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
    """First on the page, notes of LaTeX and Markdown, and the answer in the caption."""
    said = simshuffle.read(run).verdict()
    assert 4 <= len(said) <= 6
    assert re.match(r"8 ranks: \S+.* an epoch", said[0])
    assert said[-2].startswith("Rests on: ") and said[-1].startswith("Measure next: ")

    def printed(*words):
        capsys.readouterr()
        assert main([*words]) == 0
        return capsys.readouterr().out

    latex = "\n".join(f"% {line}" for line in said)
    for to, escaped in (("latex", latex), ("markdown", said[0].replace("_", "\\_"))):
        shown = printed("results", "show", str(run), "--to", to)
        assert escaped in shown and "streamlined @8" not in shown
    page, figure = tmp_path / "page.html", tmp_path / "breakdown.svg"
    printed("report", str(run), "--out", str(page))
    assert all(page.read_text().count(f"<li>{line}</li>") == 1 for line in said)
    assert "streamlined @8" not in page.read_text()
    caption = printed("figure", "breakdown", str(run), "--out", str(figure)).splitlines()[1]
    answer = simshuffle.read(run).structured_verdict().answer
    assert caption == " ".join(["Caption: Seconds of an epoch.", *answer])
