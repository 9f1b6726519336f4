"""The report page: what is on it, where it may be written, and how it works in a browser."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from simshuffle.api import read, run
from simshuffle.cli import main
from simshuffle.report.chart import Chart, Look, Mark, Panel
from simshuffle.studies.presentation import page_network as network
from simshuffle.studies.presentation.page import write_page
from simshuffle.studies.presentation.page_parts import (
    embed_json,
    html_tables,
    list_values,
    notes_section,
    warning_section,
)
from simshuffle.studies.presentation.page_runs import _exchange_over_ranks, sections
from simshuffle.studies.presentation.page_vega import panel_specs
from tests.small import small

EVIL = "<script>alert(1)</script>"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run whose name is a script, and one of another world size."""
    place = tmp_path_factory.mktemp("results")
    settings = {
        "workload__dataset__num_samples": 320,
        "workload__dataset__sample_size__mean": "10 MB",
        "epochs": 2,
    }
    exchanges = ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.3"]
    for name, size in (("first", 8), ("second", 4)):
        scenario = small(**settings, world_size=size, workload__jitter__compute=0.1)
        called = scenario.model_copy(
            update={"name": EVIL, "sweep": {"workload.exchange": exchanges}}
        )
        result = run(called)
        runs = {old: f"{EVIL} {n}" for n, old in enumerate(result.meta["runs"])}
        for table in result.tables.values():
            if "run" in table:
                table["run"] = table["run"].astype(str).map(runs)
        result.meta["runs"] = {runs[old]: facts for old, facts in result.meta["runs"].items()}
        result.save(place / name, draw=False)
    return place / "first", place / "second"


@pytest.fixture(scope="module")
def page(folders, tmp_path_factory):
    return write_page(folders, tmp_path_factory.mktemp("page") / "both.html")


def test_iterations_that_stand_for_others_count_as_often(folders):
    """With every iteration standing for two, seconds of the exchange in iterations are twice as
    many."""
    whole = read(folders[0])
    timeline = whole.tables["timeline"]
    inside = timeline[timeline["iteration"] > 0]
    result = replace(whole, tables={**whole.tables, "timeline": inside})
    sources = result.tables["sources"]
    twice = sources.assign(
        iterations=2 * sources["iterations"],
        steady_first=1,
        steady_last=sources["iterations_simulated"],
    )
    part = replace(result, tables={**result.tables, "sources": twice})
    plain, weighted = (
        [
            [float(c) for c in column.cells]
            for column in _exchange_over_ranks(of, "full").columns[4:]
        ]
        for of in (result, part)
    )
    for once, both in zip(plain, weighted, strict=True):
        assert both == pytest.approx([2 * value for value in once], rel=0.01)


def test_runs_whose_seeds_differ_each_have_their_own_first_seed():
    """Two documents, of the seeds 5 and 6, and 7 and 8: both runs are in the tables of the
    exchange, and both stage 160 samples of 100 kB, with each of their seeds."""
    settings = {"workload__dataset__num_samples": 160, "workload__jitter__read": 0.2}
    partial = "partial_local_shuffle:exchange_fraction=0.3"
    documents = [
        small(**settings, seed=seed, world_size=size, workload__exchange=partial)
        for seed, size in ((5, 8), (7, 4))
    ]
    result = run(documents, seeds=2)
    names = list(result.meta["runs"])
    assert len(names) == 2
    bodies = {section.title: section.body for section in sections(result, {})}
    captions = r"<table><caption>.*?</table>"
    tail = re.findall(captions, bodies["The tail of the exchange"], re.DOTALL)
    assert len(tail) == 2 and all(name in table for table in tail for name in names)
    (storage,) = (
        table
        for table in re.findall(captions, bodies["Storage and caches"], re.DOTALL)
        if "Storage of a host" in table
    )
    assert storage.count("16 MB") == 2


class Elements(HTMLParser):
    """Scripts with their types, ids and headings of a page."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.ids, self.targets, self.headings = [], [], [], []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self._open = tag
        if tag == "script":
            self.scripts.append([found.get("type"), ""])
        if "id" in found:
            self.ids.append(found["id"])
        if found.get("href", "").startswith("#"):
            self.targets.append(found["href"][1:])

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1][1] += data
        if re.fullmatch("h[1-6]", self._open):
            self.headings.append(data)

    def handle_endtag(self, tag):
        self._open = ""


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page.read_text())


# ----------------------------------------------------------------------------------- what is on it


def test_a_page_is_small_and_names_nothing_that_would_have_to_be_loaded(page):
    text = page.read_text()
    assert len(text) < 2_000_000
    assert not re.search(r"<(link|iframe|object|embed)\b", text)
    assert set(re.findall(r'<img [^>]*src="([^":]*):', text)) <= {"data"}
    assert "default-src 'none'" in text
    assert "unsafe-eval" not in text.partition("</head>")[0]


def test_headings_have_their_place_in_the_contents(elements):
    assert set(elements.targets) <= set(elements.ids)
    assert len(elements.ids) == len(set(elements.ids))
    assert elements.headings[1] == "Comparison"
    assert elements.headings[2].startswith("Result A: first")
    assert elements.headings.count("The network") == 2


def test_the_comparison_says_first_what_differs_in_what_was_asked(page):
    text = page.read_text().partition("</nav>")[2]
    asked = text.index("<caption><span>Inputs that differ")
    came_out = text.index("<caption><span>Seconds: A, B, difference")
    assert asked < came_out < text.index(">Result A: first<")
    assert re.search(r"<td[^>]*>world_size</td><td[^>]*>8</td><td[^>]*>4</td>", text)


def test_text_of_users_is_text(page, folders, elements):
    text = page.read_text()
    assert EVIL not in text
    assert str(folders[0].parent) not in text  # no place of the machine either
    kinds = [kind for kind, _ in elements.scripts]
    assert kinds.count(None) == 2
    data = [json.loads(body) for kind, body in elements.scripts if kind == "application/json"]
    assert len(data) == kinds.count("application/json") == len(kinds) - 2
    assert any(EVIL in json.dumps(each) for each in data)


def test_json_ends_no_script():
    value = {"a": "</script><!--\u2028"}
    assert "<" not in embed_json(value)
    assert json.loads(embed_json(value)) == value


def test_indented_lines_of_a_verdict_stay_with_their_first():
    assert html_tables(["all?", "  4 ranks: <no>.", "Done."]) == (
        "<pre>all?\n  4 ranks: &lt;no&gt;.</pre>\n<p>Done.</p>"
    )


def test_a_number_has_the_source_of_its_record():
    record = {"a": 1, "inner": {"b": 2, "source": {"b": "mine"}}, "source": "outer"}
    table = {"x": record, "y": {"c": {"d": 3, "e": 4}, "source": {"c.d": "three"}}, "z": 5}
    assert [tuple(row) for row in list_values(table)] == [
        ("x.a", 1, "outer"),
        ("x.inner.b", 2, "mine"),
        ("y.c.d", 3, "three"),
        ("y.c.e", 4, ""),
        ("z", 5, ""),
    ]


# ---------------------------------------------------------------------------------- the network


def links(*rows):
    columns = ["link", "tier", "capacity", "nbytes", "mean_utilisation", "peak_utilisation"]
    return pd.DataFrame(rows, columns=columns)


def test_levels_are_by_the_distance_from_the_hosts():
    table = links(
        ("h0>leaf0", "host>leaf", 1e9, 100, 0.1, 1),
        ("leaf0>h0", "leaf>host", 1e9, 50, 0.05, 1),
        ("leaf0>spine0#0", "leaf>spine", 1e9, 60, 0.06, 1),
        ("leaf0>spine0#1", "leaf>spine", 1e9, 0, 0, 0),
        ("pfs>spine0", "storage>spine", 1e9, 9, 0.01, 1),
        ("h0.ssd", "ssd", 1, 9, 0.5, 1),
    )
    of = network.draw_network(table)
    heights = {name: y for name, (_, y) in of.nodes.items()}
    assert heights == {"h0": 0, "leaf0": 1, "spine0": 2, "pfs": 3}
    assert [text for text, _ in of.levels] == ["1 host", "1 leaf", "1 spine", "1 storage"]
    of_name = {line.name: n for n, line in enumerate(of.lines)}
    rows = {row[0]: row[1:] for row in network.link_loads(of, table, 7)}
    first = of.lines[of_name["h0 - leaf0"]]
    assert first.ends == ("h0", "leaf0")
    assert rows[of_name["h0 - leaf0"]] == [7, 100, 0.1, 0.1, 1, 50, 0.05, 0.05, 1]
    assert of_name["leaf0 - spine0 #1"] not in rows
    beside = network.place_lines(of)
    assert beside[of_name["leaf0 - spine0 #0"]][0] < beside[of_name["leaf0 - spine0 #1"]][0]


def test_hosts_of_a_switch_are_one_line_where_there_are_many():
    rows = [(f"h{n}>leaf0", "host>leaf", 1e9, 10, n / 1000, 0.5) for n in range(60)]
    table = links(*rows, ("leaf0>h3", "leaf>host", 1e9, 5, 0.2, 1))
    of = network.draw_network(table)
    (line,) = of.lines
    assert line.ends == ("hosts of leaf0", "leaf0")
    assert network.link_loads(of, table, 0) == [[0, 0, 600, 0, 0.059, 0.5, 5, 0.2, 0.2, 1]]
    assert "60 hosts" in of.notes[0]


def test_switches_that_are_all_alike_stand_on_a_circle():
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    table = links(
        *((f"s{a}>s{b}", "leaf>leaf", 1e9, 1, 0.1, 1) for a, b in pairs),
        *((f"h{n}>s{n}", "host>leaf", 1e9, 1, 0.1, 1) for n in range(4)),
    )
    of = network.draw_network(table)
    assert of.is_round
    lengths = {name[0]: x * x + y * y for name, (x, y) in of.nodes.items()}
    assert lengths == pytest.approx({"s": 1.0, "h": 1.25**2})


# ---------------------------------------------------------------------------- where it is written


def report(*arguments, capsys):
    status = main(["report", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_page_is_replaced_by_one_of_the_same_results_alone(page, folders, tmp_path, capsys):
    out = tmp_path / "page.html"
    shutil.copy(page, out)
    assert report(*folders, "--out", out, capsys=capsys)[0] == 0
    status, said, error = report(folders[0], "--out", out, capsys=capsys)
    assert (status, said) == (2, "")
    assert "is the page of other results" in error
    assert out.read_bytes() == page.read_bytes()
    out.write_text("mine")
    assert "is not a report page" in report(folders[0], "--out", out, capsys=capsys)[2]
    assert out.read_text() == "mine"
    assert report(folders[0], "--out", out, "--force", capsys=capsys)[1] == f"Page: {out}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_default_is_called_after_the_folder(folders, here, capsys):
    assert report(folders[0], capsys=capsys)[1] == "Page: first-report.html\n"
    assert (here / "first-report.html").is_file()


@pytest.mark.parametrize(
    ("out", "rule"),
    [
        ("first", "is in a result folder"),
        ("none/page.html", "is in a folder that does not exist"),
        ("first/page.html", "is in a result folder"),
    ],
)
def test_what_is_in_the_way_is_said_before_anything_is_made(folders, tmp_path, capsys, out, rule):
    shutil.copytree(folders[0], tmp_path / "first")
    before = sorted(tmp_path.rglob("*"))
    status, said, error = report(tmp_path / "first", "--out", tmp_path / out, capsys=capsys)
    assert (status, said) == (2, "")
    assert rule in error
    assert error.count("- --out") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_result_or_is_damaged_makes_no_page(folders, tmp_path, capsys):
    out = tmp_path / "page.html"
    for damage in ("none", "table"):
        folder = tmp_path / damage
        if damage == "table":
            shutil.copytree(folders[0], folder)
            (folder / "epochs.csv").write_text("run\n")
        status, said, error = report(folders[1], folder, "--out", out, capsys=capsys)
        assert (status, said) == (2, "")
        assert "Traceback" not in error
        assert damage in error
    assert not out.exists()


def test_a_page_is_written_whole_or_not_at_all(folders, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        write_page([folders[0]], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_warnings_are_what_may_be_wrong_and_notes_say_how_it_was_computed(folders):
    """Of a run of which a part was simulated, whose measured value is used beyond its range, and
    which has an odd value."""
    result = read(folders[0])
    run_of, *_ = result.meta["runs"]
    facts = {**result.meta["runs"][run_of], "extrapolated": ["used at 8 ranks, measured at 4"]}
    meta = {**result.meta, "timeline": "ranks", "lost": {"another": "it was killed"}}
    meta["runs"] = {**meta["runs"], run_of: facts}
    sources = result.tables["sources"].assign(steady_last=2, iterations_simulated=1)
    result = replace(result, meta=meta, tables={**result.tables, "sources": sources})
    odd = {run_of: small(workload__local_batch_size=200)}
    warned, noted = warning_section(result, odd), notes_section(result)
    assert (warned.title, noted.title) == ("Warnings", "Notes")
    for said in ("measured at 4", "Lost: another", "Unusual: workload.local_batch_size"):
        assert said in warned.body
        assert said not in noted.body
    for said in ("iterations of an epoch were simulated", "a sample of the ranks", "a host holds"):
        assert said in noted.body
        assert said not in warned.body


def test_a_legend_is_no_wider_than_its_chart():
    """Four short names in a row, two of 40 letters, one of 90."""

    def columns(*names):
        looks = {name: Look(name) for name in names}
        marks = [Mark("line", pd.DataFrame({"x": [1.0], "y": [1.0], "look": [n]})) for n in names]
        ((_, of),) = panel_specs(Chart([Panel(marks)], 1.0, looks))
        return of["layer"][0]["encoding"]["color"]["legend"]["columns"]

    assert columns("local", "global") == 4
    assert columns("local", "x" * 40) == 2
    assert columns("local", "x" * 90) == 1


def shows(spec, row):
    """Whether a chart has a mark with the numbers of a row; a bar's edges are those of its row."""
    upright = "y2" in row and "x2" not in row
    wanted = {name: row[name] for name in ("x2", "y2", *(() if upright else ("x",))) if name in row}
    wanted = {name: value for name, value in wanted.items() if not pd.isna(value)}

    def found(each):
        return all(each[name] == pytest.approx(value, rel=1e-5) for name, value in wanted.items())

    return not wanted or any(
        found(each)
        for layer in spec["layer"]
        for each in layer["data"]["values"]
        if wanted.keys() <= each.keys() and None not in each.values()
    )


@pytest.mark.parametrize("kind", ["congestion", "sweep", "simulation_over_seeds", "testbed"])
def test_every_kind_has_its_tables_and_figures(results_made, tmp_path, kind):
    folder = results_made(kind)
    text = write_page([folder], tmp_path / "page.html").read_text()
    result = read(folder)
    drawn = [
        json.loads(body)["spec"]
        for kind_of, body in Elements(text).scripts
        if kind_of == "application/json"
    ]
    # every panel of a figure is a chart, with the numbers that the paper's figure has
    for chart in result.study.figures(result).values():
        for panel, (_, of) in zip(chart.panels, panel_specs(chart), strict=True):
            assert json.loads(embed_json(of)) in drawn or kind == "simulation_over_seeds"
            for kind_of in ("bar", "point", "line"):
                for mark in (mark for mark in panel.marks if mark.kind == kind_of):
                    assert all(shows(of, row) for row in mark.places().to_dict("records"))
    # a page has room for all epochs of runs, as a terminal has with -v
    parts = result.details() if kind == "simulation_over_seeds" else result.listings()
    titles = [str(part.title) for part in parts if not isinstance(part, str)]
    assert all(f"<caption><span>{title.splitlines()[0][:30]}" in text for title in titles)
    assert result.meta["fingerprint"] in text


# ------------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def shown(page):
    """The page in a browser, what its console says, and what it asks for."""
    if BROWSER is None:
        pytest.skip("no Chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    with playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        try:
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            tab.said, tab.asked = [], []
            tab.on("console", lambda message: tab.said.append(message.text))
            tab.on("pageerror", lambda error: tab.said.append(str(error)))
            tab.on("dialog", lambda dialog: (tab.said.append("dialog"), dialog.dismiss()))
            tab.on("request", lambda request: tab.asked.append(request.url))
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=60_000)
            yield tab
        finally:
            browser.close()


def test_it_opens_without_a_complaint_and_asks_for_nothing(shown, page):
    assert shown.said == []
    assert [url for url in shown.asked if not url.startswith("data:")] == [page.as_uri()]
    assert shown.locator("figure.chart").count() == shown.locator("figure.chart svg").count() > 6
    assert shown.locator(".fault").count() == 0


def test_a_name_that_is_a_script_is_shown(shown):
    assert EVIL in shown.locator(".plot svg").first.text_content()
    assert shown.locator("script").count() == 2 + shown.locator("figure.chart").count()


def test_hover_and_focus_tell_the_same_of_a_link(shown):
    tip = shown.locator("#tip")
    link = shown.locator(".network .mark-rule [role='graphics-symbol']").last
    link.scroll_into_view_if_needed()
    link.hover(force=True)
    hovered = tip.text_content()
    assert re.search(
        r"^\S+ - \S+.* GB/s\)\nto .*: .*B, mean .* %, peak", hovered.replace("%", " %")
    )
    shown.mouse.move(0, 0)
    assert tip.is_hidden()
    link.focus()
    assert tip.text_content() == link.get_attribute("aria-label") == hovered


def test_arrow_keys_visit_the_links_from_the_busiest_on(shown):
    plot = shown.locator(".network .plot").first
    assert plot.locator("[tabindex='0'][role='graphics-symbol']").count() == 1
    plot.locator("[tabindex='0'][role='graphics-symbol']").focus()
    said = [shown.locator("#tip").text_content()]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        shown.keyboard.press(key)
        said.append(shown.locator("#tip").text_content())
    assert len(set(said)) == 3
    assert said[3] == said[1]
    assert plot.locator("[tabindex='0'][role='graphics-symbol']").count() == 1
    shown.keyboard.press("Escape")
    assert shown.locator("#tip").is_hidden()

    def most(text):
        return max(float(each) for each in re.findall(r"mean (?:\S+ to )?([\d.]+) ?%", text))

    assert most(said[0]) >= most(said[1]) >= most(said[2])


def test_another_epoch_is_drawn_when_it_is_chosen(shown):
    plot = shown.locator(".network .plot").nth(1)  # of the run that exchanges
    links = plot.locator(".mark-rule [role='graphics-symbol']")

    def said():
        return links.evaluate_all("all => all.map((each) => each.getAttribute('aria-label'))")

    before = said()
    plot.locator("select").first.select_option(index=0)
    shown.wait_for_timeout(300)
    assert len(said()) > 0
    assert set(said()) - set(before)
    assert plot.locator("[tabindex='0'][role='graphics-symbol']").count() == 1


def test_a_heading_sorts_its_table_and_gives_the_order_back(shown):
    table = shown.locator("table", has_text="Links and devices by kind").first
    head = table.locator("th", has_text="bytes")
    place = table.locator("th").all_text_contents().index("bytes") + 1

    def column():
        return table.locator(f"tbody td:nth-child({place})").all_text_contents()

    def value(text):
        number, unit = text.split()
        return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]

    first = column()
    for order, sign in (("ascending", 1), ("descending", -1)):
        head.locator("button").focus()
        shown.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == order
        known = [sign * value(text) for text in column() if text != "-"]
        assert known == sorted(known)
        assert column()[-1] == "-"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") is None
    assert column() == first


def test_all_tables_fit_a_page_of_1200_pixels(shown):
    assert shown.viewport_size["width"] == 1200
    shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    wide = """boxes => boxes.filter(box => box.scrollWidth > box.clientWidth)
        .map(box => box.getAttribute('aria-label'))"""
    boxes = shown.locator("div.box:has(> table)")
    assert boxes.count() > 12
    assert boxes.evaluate_all(wide) == []
    shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = false; })")


def test_a_narrow_page_does_not_scroll_sideways_and_dark_is_dark(shown):
    shown.set_viewport_size({"width": 400, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    assert shown.evaluate("document.querySelector('.box table').parentElement.scrollWidth") > 300
    back = "getComputedStyle(document.body).backgroundColor"
    light = shown.evaluate(back)
    shown.emulate_media(color_scheme="dark")
    dark = shown.evaluate(back)
    label = shown.evaluate(
        "getComputedStyle(document.querySelector('.plot .role-axis-label text')).fill"
    )

    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(light) > 600
    assert brightness(dark) < 150
    assert brightness(label) > 600
    shown.emulate_media(color_scheme="light")


def test_without_the_scripts_of_charts_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("simshuffle.studies.presentation.page.find_spec", lambda name: None)
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 2
    assert "pip install 'simshuffle[page]'" in capsys.readouterr().err
    assert not out.exists()
