"""Figures for papers: what can be read in them, what they show, and the files they become."""

import json
import re
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.learning.time_to_accuracy.figures import frontier_chart
from simshuffle.report.canvas import new_figure
from simshuffle.report.style import COLUMN_INCHES, STYLES, in_style, width
from simshuffle.studies.presentation import KINDS
from simshuffle.studies.presentation.catalogue import (
    CATALOGUE,
    check_results,
    find_kind,
    name_column,
)
from simshuffle.studies.presentation.draw import TEX, FigureRequest, write
from simshuffle.studies.presentation.named_results import NamedResult
from simshuffle.studies.presentation.storage import (
    Q,
    fit_data_set,
    read_data_sets,
    read_machines,
    spread_apart,
)
from simshuffle.study.registry import merge_extensions
from tests.drawn import faults, laid_out, words
from tests.figure_results import PAIRS, made
from tests.units.test_figures import frontier as crowded

LOOKS = [("ieee", 1), ("ieee", 2), ("acm", 1), ("slides", 1)]


@pytest.fixture(scope="module")
def results(results_made):
    return made(results_made)


@pytest.fixture(scope="module")
def saved(results, tmp_path_factory):
    """Folders of results by name."""
    place = tmp_path_factory.mktemp("saved")
    return {
        name: of[0].result.save(place / name, draw=False)
        for name, of in results.items()
        if name in {"runs", "sweep", "ablation"}
    }


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(results, kind, of):
    return find_kind(kind).table(results[of])


# ---------------------------------------------------------------------------------------- all kinds


def test_every_kind_is_drawn_here():
    assert {kind for kind, _ in PAIRS} == set(KINDS)
    assert [*CATALOGUE, *merge_extensions().figures] == list(KINDS)


@pytest.mark.parametrize(("kind", "of"), PAIRS)
def test_words_can_be_read_and_lie_on_no_other_in_every_style(results, kind, of):
    check_results(kind, results[of])
    for style, columns in LOOKS:
        with in_style(STYLES[style], columns):
            figure = laid_out(find_kind(kind).chart(results[of]))
            assert list(faults(figure)) == [], (style, columns)
            assert figure.get_figwidth() == STYLES[style].widths[columns - 1]


@pytest.mark.parametrize(("style", "columns"), [("ieee", 1), ("slides", 1)])
def test_words_of_a_front_lie_on_no_other_in_every_style(results, style, columns):
    (tta,) = results["time_to_accuracy"]
    with in_style(STYLES[style], columns):
        few = frontier_chart(tta.result.tables["settings"], tta.result.meta)
        assert list(faults(few)) == []
        assert list(faults(crowded())) == []


def test_a_style_lasts_as_long_as_it_is_chosen_and_slides_are_16_to_9():
    with in_style(STYLES["slides"]):
        assert new_figure(1.0).get_figheight() == pytest.approx(4.5 * 9 / 16)
        assert new_figure(4.0).get_figheight() == 4.0
        assert width() * STYLES["slides"].enlarged == pytest.approx(10)
    assert width() == COLUMN_INCHES
    assert new_figure(1.0).get_figheight() == 1.0


@pytest.mark.parametrize(("kind", "of"), PAIRS)
def test_every_table_has_plain_values_and_headings(results, kind, of):
    found = table(results, kind, of)
    assert len(found) > 0
    json.dumps(found.astype(object).where(found.notna(), None).to_dict("records"), default=float)
    assert all("_" not in name_column(name) for name in found.columns)


# ---------------------------------------------------------------------------------- what they show


def test_a_breakdown_adds_up_and_has_the_interval_of_seeds(results):
    for of in ("runs", "sweep"):
        rows = table(results, "breakdown", of)
        parts = [name for name in rows if name.endswith("_s") and name != "epoch_s"]
        assert rows[parts].sum(axis=1).to_numpy() == pytest.approx(rows["epoch_s"].to_numpy())
        assert (rows["low"] < rows["epoch_s"]).all()


def test_the_table_of_a_breakdown_books_the_slow_down_by_gradients_as_run_does(results):
    (of,) = results["runs"]
    tables = {name: frame.copy() for name, frame in of.result.tables.items()}
    slowed = tables["breakdown"]["label"].eq("FW+BW") & tables["breakdown"]["cause"].eq("")
    row = tables["breakdown"][slowed].assign(cause="GE+WU", seconds=2.0)
    tables["breakdown"] = pd.concat([tables["breakdown"], row], ignore_index=True)
    longer = NamedResult("", replace(of.result, tables=tables))
    before, after = (find_kind("breakdown").table([each]) for each in (of, longer))
    assert after["GE+WU_s"].to_numpy() == pytest.approx(before["GE+WU_s"].to_numpy() + 2.0)
    assert after["waiting_s"].to_numpy() == pytest.approx(before["waiting_s"].to_numpy())


def test_a_sweep_and_its_runs_tell_the_same(results):
    summary = results["sweep"][0].result.derived["summary"]
    last = summary[(summary["measure"] == "epoch_s") & (summary["epoch"] == 2)]
    means = last.set_index(["label"])["mean"]
    rows = table(results, "breakdown", "sweep").set_index("run")
    assert rows["epoch_s"].to_dict() == pytest.approx(means.to_dict())


def test_scaling_is_measured_from_the_smallest_size(results):
    rows = table(results, "scaling", "sweep")
    assert sorted(set(rows["line"])) == [
        "local",
        "partial-0.1 streamlined",
        "partial-0.3 streamlined",
    ]
    first, last = (rows[rows["world_size"] == size].set_index("line") for size in (2, 8))
    assert (first["speedup"] == 1).all()
    assert (last["speedup"] - first["epoch_s"] / last["epoch_s"]).abs().max() < 1e-12
    assert (last["efficiency"] - last["speedup"] / 4).abs().max() < 1e-12


def test_an_exchange_leaves_out_what_exchanges_nothing_and_hidden_is_the_rest(results):
    assert "local" not in set(table(results, "exchange", "sweep")["line"])
    rows = table(results, "hidden", "runs")
    epochs = results["runs"][0].result.tables["epochs"]
    last = epochs[epochs["epoch"] == 2].groupby("run", observed=True)["exchange_total_s"].mean()
    whole = (rows["exposed_s"] + rows["hidden_s"]).to_numpy()
    assert whole == pytest.approx(last.loc[list(rows["run"])].to_numpy())


def test_lines_over_q_are_of_one_strategy_and_size(results):
    rows = table(results, "fraction", "sweep")
    assert set(rows["line"]) == {f"partial streamlined @{size}" for size in (2, 4, 8)}
    assert set(rows["exchange_fraction"]) == {0.1, 0.3}


def test_quantiles_are_those_of_ranks(results):
    rows = table(results, "completion", "runs").set_index("run")
    timeline = results["runs"][0].result.tables["timeline"]
    run = rows.index[0]
    phases = ["exchange", "wait_exchange", "exchange_hidden"]
    of = timeline[timeline["phase"].isin(phases) & (timeline["epoch"] == 2)]
    of = of[of["run"].astype(str) == run]
    seconds = (of["end_s"] - of["start_s"]).groupby([of["seed"], of["rank"]]).sum()
    assert rows.loc[run, "ranks"] == len(seconds) == 12
    assert rows.loc[run, ["min_s", "max_s"]].to_list() == [seconds.min(), seconds.max()]


def test_a_sample_of_ranks_is_called_one(results):
    (of,) = results["runs"]
    part = replace(of.result, meta={**of.result.meta, "timeline": "ranks"})
    for result, sampled in ((of.result, False), (part, True)):
        given = [NamedResult("here", result)]
        label = find_kind("completion").chart(given).panels[0].y.title
        assert ("sampled" in label) is sampled
        assert (
            any("sample of ranks" in note for note in find_kind("completion").notes(given))
            is sampled
        )


def test_links_are_the_busiest_of_their_tier_at_the_time_of_the_epoch(results):
    rows = table(results, "links", "runs")
    first = rows[rows["epoch"] == 1]
    assert (first["start_s"].abs() < 1e-12).all()
    assert (rows["mean"] <= rows["peak"]).all()
    links = results["runs"][0].result.tables["links"]
    of = links[(links["tier"] == "ssd") & (links["epoch"] == 1)]
    of = of[of["run"].astype(str) == first["run"].iloc[0]]
    most = of.groupby("seed")["mean_utilisation"].max().mean()
    assert first[first["tier"] == "ssd"]["mean"].iloc[0] == pytest.approx(most)


def test_runs_of_one_name_have_their_folder_in_front(results):
    (of,) = results["runs"]
    both = [NamedResult("here", of.result), NamedResult("there", of.result)]
    names = set(find_kind("breakdown").table(both)["run"])
    assert {"here: local @4", "there: local @4"} <= names
    mixed = find_kind("breakdown").table([of, *results["sweep"]])
    assert len(mixed) == 12
    assert {"local @2", "runs: local @4", "sweep: local @4"} <= set(mixed["run"])


def test_a_name_is_drawn_as_it_is_written(results):
    (of,) = results["runs"]
    both = [NamedResult(name, of.result) for name in (r"a$\x$", "b_{")]
    drawn = [text.get_text() for text, _ in words(find_kind("breakdown").chart(both))]
    assert r"a$\x$: local" in drawn


# ------------------------------------------------------------------------------------- of machines


def test_a_data_set_fits_whole_as_shards_or_not_at_all():
    assert fit_data_set(10, hosts=4, storage=10).fits == "whole"
    assert fit_data_set(36, hosts=4, storage=10).fits == "(1+Q) shards"
    found = fit_data_set(40, hosts=4, storage=10)
    assert found == ("shards", 4, 5)
    assert fit_data_set(41, hosts=4, storage=10).fits == "no"


def test_machines_and_data_sets_have_sources():
    for found, least in ((read_machines(), 10), (read_data_sets(), 8)):
        assert len(found) >= least
        assert found["source"].str.len().min() > 20
        assert found["year"].between(2010, 2030).all()
        assert found.notna().all(axis=None)
    assert Q == 0.1
    rows = find_kind("storage").table([])
    one = rows[(rows["machine"] == "Fugaku") & (rows["data_set"] == "DeepCAM")].iloc[0]
    assert (one["fits"], one["hosts_for_shards"]) == ("(1+Q) shards", 88)


def test_labels_move_as_little_as_need_be():
    assert spread_apart([0.1, 0.5], 0.1) == [0.1, 0.5]
    assert spread_apart([0.48, 0.5, 0.52], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    found = spread_apart([0.1, 0.11, 0.2, 0.21, 0.9], 0.08)
    assert min(np.diff(found)) >= 0.08 - 1e-12


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_file_says_what_it_shows_and_is_the_same_again(saved, results, suffix, capsys):
    (of,) = results["ablation"]
    asked = ["figure", "waterfall", str(saved["ablation"]), "--format", suffix]
    assert main(asked) == 0
    path = Path(f"waterfall.{suffix}")
    first, caption = capsys.readouterr().out.splitlines()
    assert (first, caption.partition(":")[0]) == (f"Figure: {path}", "Caption")
    first = path.read_bytes()
    fingerprint = of.result.meta["fingerprint"]
    said = rf"simshuffle [\d.]+, figure waterfall of results {fingerprint}"
    assert re.search(said.encode(), first)
    assert main(asked) == 0  # a figure of ours is replaced
    assert path.read_bytes() == first
    assert [p.name for p in Path().iterdir()] == [path.name]


def test_slides_are_enlarged_with_their_letters():
    with in_style(STYLES["slides"]):
        figure = new_figure(1.0)
        figure.subplots()
        for suffix in ("png", "svg", "pdf"):
            write(figure, Path(f"it.{suffix}"), "simshuffle 1, figure it", 10 / 4.5)
    with Image.open("it.png") as image:
        assert image.size == (3000, 1687)
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    assert re.search(r'width="720pt" height="405pt" viewBox="0 0 324 ', Path("it.svg").read_text())
    content = Path("it.pdf").read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
    assert [float(part) for part in box.groups()] == pytest.approx([720, 405])
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
    drawn = [zlib.decompress(part) for part in streams if part[:1] == b"x"]
    assert any(b"2.222222" in part.split(b" cm", 1)[0] for part in drawn)


def test_figures_of_a_result_say_which_one(results, tmp_path):
    (of,) = results["ablation"]
    png, pdf = of.result.draw(tmp_path / "figures", "mine")
    said = f"figure waterfall of results {of.result.meta['fingerprint']}".encode()
    assert said in png.read_bytes()
    assert said in pdf.read_bytes()


@pytest.mark.skipif(not any(map(shutil.which, TEX)), reason=f"needs one of {', '.join(TEX)}")
def test_a_pgf_says_what_a_text_says(tmp_path):
    with in_style(STYLES["ieee"]):
        figure = new_figure(1.0)
        figure.subplots().set_xlabel("a_b & 5 % #1 → $x")
    write(figure, Path("it.pgf"), "simshuffle 1, figure it")
    text = Path("it.pgf").read_text()
    assert text.startswith("% simshuffle 1, figure it\n")
    assert r"a\_b \& 5 \% \#1 $\rightarrow$ \$x" in text


def test_a_pgf_without_tex_is_refused_in_one_error(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert main(["figure", "storage", "--format", "pgf"]) == 2
    assert "or use --format pdf" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


# ----------------------------------------------------------------------------------------- the verb


def test_without_a_kind_all_are_listed(capsys):
    assert main(["figure"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name, sentence in KINDS.items():
        assert f"{name} {sentence}" in printed


def test_tables_are_printed_and_nothing_else(saved, capsys):
    asked = ["figure", "scaling", str(saved["sweep"])]
    assert main([*asked, "--latex"]) == 0
    latex = capsys.readouterr().out
    assert "\\toprule" in latex
    assert latex.startswith("%")
    assert main([*asked, "--to", "latex"]) == 0
    assert capsys.readouterr().out == latex
    assert main([*asked, "--json"]) == 0
    assert {"line", "world_size", "epoch_s"} <= set(json.loads(capsys.readouterr().out)[0])
    assert list(Path().iterdir()) == []
    assert main([*asked, "--latex", "--out", "it.svg"]) == 0
    assert capsys.readouterr().out == latex
    assert Path("it.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scaling"], "needs a result folder of 'simshuffle run'"),
        (["scaling", "ABLATION"], "takes results of 'simshuffle run'"),
        (["scaling", "RUNS"], "at least two world sizes"),
        (["waterfall", "ABLATION", "ABLATION"], "is given twice"),
        (["storage", "RUNS"], "storage needs no result"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_written(saved, arguments, said, capsys):
    Path("taken.pdf").write_text("mine")
    words = [str(saved.get(word.lower(), word)) if word.isupper() else word for word in arguments]
    assert main(["figure", *words]) == 2
    assert said in capsys.readouterr().err
    assert Path("taken.pdf").read_text() == "mine"
    assert len(list(Path().iterdir())) == 1


def test_force_replaces_what_is_no_figure():
    Path("taken.pdf").write_text("mine")
    assert main(["figure", "storage", "--out", "taken.pdf", "--force"]) == 0
    assert Path("taken.pdf").read_bytes().startswith(b"%PDF")


def test_one_result_only_where_several_make_no_sense(results):
    (of,) = results["ablation"]
    with pytest.raises(InputError, match="waterfall takes only one result"):
        check_results("waterfall", [of, NamedResult("other", of.result)])
    with pytest.raises(InputError, match="no such kind"):
        FigureRequest("pie")
