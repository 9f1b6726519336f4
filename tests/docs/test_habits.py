"""What a repository is expected to have is there and true: the paper and its references, the
artifact, issue forms, the workflow, the line of facts in README.md."""

import csv
import importlib.util
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from simshuffle import load_scenario, run
from tests.conftest import pytest_collection_modifyitems

ROOT = Path(__file__).parent.parent.parent
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
PAPER = (ROOT / "paper" / "paper.md").read_text()
TEXTS = [ROOT / name for name in ("ARTIFACT.md", "SECURITY.md")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [
    text.rpartition(" ")[2]
    for text in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
]


# -------------------------------------------------------------------------------------------- facts


def test_the_facts_of_the_readme_are_those_of_the_project():
    facts = (ROOT / "README.md").read_text().split("\n\n")[1]
    least = PROJECT["requires-python"].removeprefix(">=")
    status = next(text for text in PROJECT["classifiers"] if text.startswith("Development Status"))
    assert facts == (
        f"Python {least} to {PYTHONS[-1]} · {PROJECT['license']} licence ·"
        f" version {PROJECT['version']}, {status.rpartition(' ')[2].lower()}"
    )
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_the_readme_asks_no_other_host_for_pictures():
    text = (ROOT / "README.md").read_text("utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)


def test_the_table_of_packages_has_all_that_an_installation_takes_and_the_extras():
    """docs/data/installation.csv and docs/commands.md, in words of pyproject.toml."""
    table = (ROOT / "docs" / "data" / "installation.csv").read_text("utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    named = [re.split("[><=]", needed)[0] for needed in PROJECT["dependencies"]]
    assert sorted(row["package"].partition(",")[0] for row in rows) == sorted(named)
    text = (ROOT / "docs" / "commands.md").read_text("utf-8").partition("**Installation**")[2]
    largest = sorted(rows, key=lambda row: -int(row["megabytes"]))[:3]
    assert [row["package"].partition(",")[0] for row in largest] == ["numba", "pyarrow", "scipy"]
    assert f"scipy are {sum(int(row['megabytes']) for row in largest)} " in text
    extras = set(PROJECT["optional-dependencies"]) - {"docs"}
    assert extras <= set(re.findall(r"`(\w+)`", text.partition("An installation")[0]))


def test_the_changelog_has_the_form_of_keep_a_changelog():
    """A line a change; of the kinds of that form, in their order; newest versions first."""
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    head, *versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.M)
    assert head.startswith("# Changelog\n") and versions[0].startswith("[Unreleased]\n")
    names = [re.match(r"\[([\d.]+)\] - \d{4}-\d\d-\d\d\n", text)[1] for text in versions[1:]]
    assert names == sorted(names, key=lambda name: [*map(int, name.split("."))], reverse=True)
    assert names[0] == PROJECT["version"]
    for version in versions:
        _, *sections = re.split(r"^### ", version, flags=re.MULTILINE)
        found = [section.split("\n")[0] for section in sections]
        assert found == [kind for kind in kinds if kind in found]
        lines = [line for section in sections for line in section.splitlines()[1:] if line]
        assert [line for line in lines if not line.startswith("- ")] == []
        assert [line for line in lines if len(line.split()) > 31] == [], "at most 30 words"


# ------------------------------------------------------------------------------ forms and workflow


@pytest.mark.parametrize("form", [path for path in FORMS if path.stem != "config"], ids=str)
def test_an_issue_form_is_one(form):
    read = yaml.safe_load(form.read_text())
    assert set(read) == {"name", "description", "labels", "body"}
    asked = [part for part in read["body"] if part["type"] != "markdown"]
    ids = [part["id"] for part in asked]
    assert len(set(ids)) == len(ids) > 3
    assert {part["type"] for part in asked} <= {"textarea", "input", "checkboxes"}
    assert all(part["attributes"]["label"] for part in asked)


def test_a_prediction_that_is_off_comes_with_scenario_log_and_version():
    read = yaml.safe_load((FORMS[0].parent / "prediction-off.yml").read_text())
    needed = {
        part["id"] for part in read["body"] if part.get("validations", {}).get("required") is True
    }
    assert {"scenario", "log", "version"} <= needed


def test_blank_issues_may_be_written():
    config = yaml.safe_load((FORMS[0].parent / "config.yml").read_text())
    assert config == {"blank_issues_enabled": True}


def test_the_workflow_checks_every_push_in_parts_and_does_what_takes_long_at_night():
    read = yaml.load(WORKFLOW.read_text(), yaml.BaseLoader)  # `on` stays a text
    assert set(read["on"]) == {"push", "pull_request", "schedule"}
    jobs = read["jobs"]
    nightly = {name for name, job in jobs.items() if "!=" not in job["if"]}
    assert nightly == {"whole", "nightly"}
    assert all(
        int(job["timeout-minutes"]) <= 15 for name, job in jobs.items() if name not in nightly
    )
    last = {name: job["steps"][-1] for name, job in jobs.items()}
    assert last["check"] == {"run": "make check docs"}
    assert last["test"] == {"run": "make test SHARD=${{ matrix.shard }}"}
    parts = jobs["test"]["strategy"]["matrix"]
    assert parts["python"] == [PYTHONS[0], PYTHONS[-1]]
    assert parts["shard"] == [
        f"{k}/{len(parts['shard'])}" for k in range(1, len(parts["shard"]) + 1)
    ]
    for name in ("wheel", "whole"):
        assert jobs[name]["strategy"]["matrix"]["python"] == PYTHONS
    assert last["whole"] == {"run": ".ci/run", "env": {"PYTHON": "python${{ matrix.python }}"}}
    makefile = (ROOT / "Makefile").read_text()
    for target in jobs["nightly"]["strategy"]["matrix"]["target"]:
        assert f"\n{target}:" in makefile
    steps = [step for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps)
    assert "${PYTHON:-" in (ROOT / ".ci" / "run").read_text()


def test_every_test_is_in_one_part():
    names = [f"tests/units/test_{k % 7}.py::test_{k}" for k in range(100)]
    names += ["tests/docs/test_commands.py::test_a", "tests/units/test_cli.py::test_b"]
    drawn = []
    hook = SimpleNamespace(pytest_deselected=lambda items: drawn.append(len(items)))
    for part in range(1, 5):
        items = [SimpleNamespace(nodeid=name) for name in names]
        config = SimpleNamespace(getoption=lambda _, part=part: f"{part}/4", hook=hook)
        pytest_collection_modifyitems(config, items)
        assert len(items) + drawn.pop() == len(names)
        drawn += [item.nodeid for item in items]
    assert sorted(drawn) == sorted(names)


def test_pre_commit_runs_what_make_check_does():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition("\ncheck: ")[2].partition("\n\n")[0].splitlines()[1:]
    commands = [line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in recipe]
    assert [hook["entry"] for hook in hooks] == commands


# -------------------------------------------------------------------------------------------- paper


def references():
    """The fields of each entry of paper.bib by its name."""
    text = (ROOT / "paper" / "paper.bib").read_text()
    entries = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    return {name: dict(re.findall(r"^  (\w+) = \{(.*)\},?$", body, re.M)) for name, body in entries}


def test_what_the_paper_cites_is_in_its_bibliography_and_nothing_else():
    assert set(re.findall(r"@(\w+)", PAPER)) == set(references())


def test_every_reference_has_a_doi():
    for name, fields in references().items():
        assert {"author", "title", "year"} <= set(fields), name
        assert re.fullmatch(r"10\.\d{4,5}/\S+", fields["doi"]), name


def test_the_paper_has_the_authors_and_the_title_of_the_citation_file():
    head = yaml.safe_load(PAPER.split("---\n")[1])
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert head["title"] == cited["title"]
    assert head["authors"] == cited["authors"]
    assert 800 < len(PAPER.split()) < 1400


def test_the_figures_of_the_paper_are_those_of_the_validation():
    page = (ROOT / "docs" / "reference" / "validation.md").read_text()
    rows = re.findall(r"^\| \w+ \| \d+ \|.*$", PAPER, re.MULTILINE)
    assert len(rows) == 7
    assert all(f"\n{row}\n" in page for row in rows)
    within, predicted = re.search(r"(\d+) of (\d+) predicted rows", PAPER).groups()
    assert f"Of {predicted} predicted rows {within} lie within" in page
    assert f"{len(list((ROOT / 'topologies').glob('*.yaml')))} machines are" in PAPER


# ----------------------------------------------------------------------------------------- artifact


@pytest.fixture(scope="module")
def artifact():
    """The module that compares."""
    spec = importlib.util.spec_from_file_location("artifact_compare", ROOT / "artifact/compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """A folder of results, of which it holds the cheapest."""
    folder = tmp_path_factory.mktemp("artifact")
    run(load_scenario("quickstart"), timeline="none").save(folder / "quickstart")
    return folder


def test_the_artifact_is_what_the_program_computes_now(artifact, quickstart, capsys):
    assert artifact.compare(quickstart)
    assert capsys.readouterr().out.endswith("3 of 3 as expected\n")


def test_the_artifact_fails_where_a_number_differs(
    artifact, quickstart, tmp_path, monkeypatch, capsys
):
    other = artifact.EXPECTED.read_text().replace("local @64,3.9875", "local @64,4")
    (tmp_path / "expected.csv").write_text(other)
    monkeypatch.setattr(artifact, "EXPECTED", tmp_path / "expected.csv")
    assert not artifact.compare(quickstart)
    assert "DIFFERS" in capsys.readouterr().out


def test_the_artifact_fails_without_results(artifact, tmp_path, capsys):
    assert not artifact.compare(tmp_path)
    assert capsys.readouterr().out == "0 of 0 as expected\n"


def test_the_pages_have_the_numbers_of_the_artifact(artifact):
    expected = pd.read_csv(artifact.EXPECTED)
    page = TEXTS[0].read_text()
    shown = re.findall(r"^\| `(\w+)` \| (.+) \| ([\d.]+) \|$", page, re.MULTILINE)
    rows = [(row.folder, row.run, row.seconds) for row in expected.itertuples()]
    assert [(folder, run, float(seconds)) for folder, run, seconds in shown] == rows
    assert f"{len(rows)} of {len(rows)} as expected" in page
    by_run = expected.drop_duplicates("run").set_index("run")["seconds"]
    assert f"takes {by_run['global-pfs @2048']:.1f} s with global" in PAPER
    assert f"{by_run['partial-0.1 authors @2048']:.2f} s, and" in PAPER
    assert f"{by_run['partial-0.1 streamlined @2048']:.2f} s under" in PAPER
    concepts = (ROOT / "docs" / "concepts.md").read_text()
    for size in (128, 2048):
        digits = 1 if size == 128 else 2
        for name in ("local", "partial-0.1 authors", "partial-0.1 streamlined"):
            assert f"{by_run[f'{name} @{size}']:.{digits}f} s" in concepts


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
    assert targets
    assert all((ROOT / target).exists() for target in targets)


def test_the_bounds_of_the_security_page_are_those_of_the_readers():
    from simshuffle.fabric.topology.custom import MAX_BYTES, MAX_LINKS
    from simshuffle.spec.library import MAX_NUMBER, MAX_YAML_DEPTH, MAX_YAML_LENGTH, MAX_YAML_VALUES

    page = TEXTS[1].read_text()
    assert f"{MAX_YAML_LENGTH:,} characters, {MAX_YAML_VALUES:,} values" in page
    assert f"{MAX_YAML_DEPTH} levels; numbers of at most {MAX_NUMBER} characters" in page
    assert f"at most {MAX_BYTES >> 20} MiB and {MAX_LINKS:,} links" in page
