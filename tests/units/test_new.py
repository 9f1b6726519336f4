"""simshuffle new: what it asks, what it writes, and that what is written is a scenario."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from simshuffle import run
from simshuffle.cli import main
from simshuffle.cli import new as verb
from simshuffle.errors import InputError
from simshuffle.new import draft
from simshuffle.new.draft import drafts
from simshuffle.new.files import write_drafts
from simshuffle.new.questions import BY_NAME, QUESTIONS, answered
from simshuffle.scenario.scenario import load_scenario
from simshuffle.spec.units import Dimension, parse_quantity

NEEDED = {question.name: question.default for question in QUESTIONS if question.needed}
RESEARCHER = (
    "--hosts 64 --gpus 4 --accelerator a100 --hcas 2 --hca-bandwidth '200 Gbit/s' --ports 40"
    " --taper 2 --pfs-bandwidth '120 GB/s' --pfs-opens '30 k/s' --samples 10000000"
    " --sample-size '150 kB' --batch-time '0.11 s' --batch-size 64 --gradients '100 MB'"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    return tmp_path


def refused(given, name="mine"):
    with pytest.raises(InputError) as caught:
        drafts(name, given)
    return [(problem.path, problem.rule) for problem in caught.value.problems]


def test_the_machine_of_a_researcher_from_options(here, capsys):
    assert main(["new", "mine", *shlex.split(RESEARCHER)]) == 0
    assert "Next: simshuffle check mine.yaml" in capsys.readouterr().out
    assert main(["check", "mine.yaml"]) == 0
    scenario = load_scenario("mine.yaml")
    topology, host = scenario.cluster.topology, scenario.cluster.host
    assert (topology.hosts, topology.ports, topology.taper, topology.rails) == (64, 40, 2, 2)
    assert (topology.link_bandwidth, host.gpus, host.hcas) == (25e9, 4, 2)
    servers = scenario.cluster.parallel_file_system
    assert (servers.read_bandwidth, servers.open_rate) == (120e9, 30e3)
    workload = scenario.workload
    assert (workload.dataset.num_samples, workload.dataset.sample_size.mean) == (10**7, 150e3)
    assert workload.model.gradient_size == 100e6
    times = workload.model.accelerators["a100"]
    batch = workload.local_batch_size * (times.forward + times.backward_seconds) + times.update
    assert batch == pytest.approx(0.11, rel=1e-12)
    assert list(scenario.runs()) == [
        "global-pfs @256",
        "local @256",
        "partial-0.1 streamlined @256",
    ]


def test_what_is_written_can_be_simulated(here):
    assert main(["new", "mine", *shlex.split(RESEARCHER)]) == 0
    small = {"world_size": 8, "epochs": 1, "workload.dataset.num_samples": 8 * 64 * 3}
    epochs = run(load_scenario("mine.yaml", small)).epochs.set_index("run")["epoch_s"]
    # three batches of 0.11 s at least
    assert epochs.min() > 0.33
    assert list(epochs.index) == ["global-pfs @8", "local @8", "partial-0.1 streamlined @8"]


def test_without_a_terminal_all_that_only_the_user_knows_is_asked_for_at_once(here, capsys):
    assert main(["new", "mine", "--taper", "0"]) == 2
    said = capsys.readouterr().err
    for name in NEEDED:
        assert f"{BY_NAME[name].option}: is required" in said
    assert "--taper: must be a number, at least 1; got '0'" in said
    assert list(here.iterdir()) == []


def test_a_wizard_asks_what_was_not_given_and_asks_again_what_is_wrong(here, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    replies = {"Ports of a switch": ["many", "64"], "SSD of a host, or none": ["none"]}
    asked = []

    def prompt(text, default, err):
        asked.append(text.strip())
        return replies.get(text.strip(), [default]).pop(0)

    monkeypatch.setattr(typer, "prompt", prompt)
    assert main(["new", "mine", "--hosts", "8"]) == 0
    said = capsys.readouterr().err
    assert "Hosts" not in asked
    assert asked.count("Ports of a switch") == 2
    assert "What the SSD reads" not in asked
    assert "must be a whole number, at least 1" in said
    for question in QUESTIONS[1:]:
        if question.name not in {"ssd_read", "ssd_write"}:
            assert question.advice in said
    scenario = load_scenario("mine.yaml")
    assert (scenario.cluster.topology.hosts, scenario.cluster.topology.ports) == (8, 64)
    again = next(line for line in said.splitlines() if line.startswith("The same without"))
    monkeypatch.setattr(typer, "prompt", None)
    texts = [path.read_text() for path in sorted(here.iterdir())]
    assert main([*shlex.split(again.partition(": simshuffle ")[2]), "--force"]) == 0
    assert [path.read_text() for path in sorted(here.iterdir())] == texts


def test_with_all_that_is_needed_nothing_is_asked_on_a_terminal_either(here, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", None)
    assert main(["new", "mine", *shlex.split(RESEARCHER)]) == 0


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_every_default_is_an_answer_with_a_source_to_a_key_that_exists(question):
    assert question.problem(question.default) is None
    assert question.why
    texts = drafts("mine", NEEDED)
    plain = yaml.safe_load(texts["mine.yaml"])
    plain["cluster"] = yaml.safe_load(texts["mine-cluster.yaml"])
    for step in question.at.split(".", 1 if question.at.startswith("sweep") else -1):
        plain = plain[step]
    if question.needed or f"{question.name}?" in draft.MACHINE + draft.SSD:
        named = question.name in {"hosts", "samples", "batch_size"}
        assert named or any(question.advice in text for text in texts.values())


def test_defaults_are_those_of_the_shipped_files():
    abci = load_scenario("quickstart", {"cluster": "abci"}).cluster
    default = {name: question.default for name, question in BY_NAME.items()}
    rate, size = Dimension.BANDWIDTH, Dimension.NBYTES
    servers, ssd = abci.parallel_file_system, abci.ssd
    assert parse_quantity(default["pfs_bandwidth"], rate) == servers.read_bandwidth
    assert parse_quantity(default["pfs_opens"], Dimension.FREQUENCY) == servers.open_rate
    assert parse_quantity(default["ssd"], size) == ssd.capacity
    assert parse_quantity(default["ssd_read"], rate) == ssd.read_bandwidth
    assert parse_quantity(default["ssd_write"], rate) == ssd.write_bandwidth
    known = load_scenario("quickstart", {"workload.model": "resnet50"}).workload.model
    assert parse_quantity(default["gradients"], size) == pytest.approx(
        known.gradient_size, rel=3e-3
    )
    times = known.accelerators["a100-sxm4-40gb-amp"]
    batch = 64 * (times.forward + times.backward) + times.update
    assert parse_quantity(default["batch_time"], Dimension.SECONDS) == pytest.approx(
        batch, rel=2e-3
    )


def test_the_files_are_narrow_and_name_no_placeholder():
    for given in (NEEDED, {**NEEDED, "ssd": "none"}):
        for text in drafts("mine", given).values():
            assert max(map(len, text.splitlines())) <= 101
            assert "?}" not in text


def test_hosts_without_ssd_stage_to_memory():
    texts = drafts("mine", {**NEEDED, "ssd": "none", "memory": "1 TB"})
    scenario, machine = map(yaml.safe_load, texts.values())
    assert scenario["workload"]["staging"] == {"target": "memory"}
    assert machine["ssd"]["capacity"] == "1 TB"


@pytest.mark.parametrize(
    ("accelerator", "nvlink"), [("H100-SXM", "450"), ("v100", "50"), ("x", "300")]
)
def test_the_accelerator_sets_its_links(accelerator, nvlink):
    text = drafts("mine", {**NEEDED, "accelerator": accelerator})["mine-cluster.yaml"]
    host = yaml.safe_load(text)["host"]
    assert (host["accelerator"], host["nvlink_bandwidth"]) == (accelerator, f"{nvlink} GB/s")
    assert ("as of an A100" in text) == (accelerator == "x")


def test_one_way_is_no_sweep():
    plain = yaml.safe_load(drafts("mine", {**NEEDED, "ways": "partial-0.3"})["mine.yaml"])
    assert plain["workload"]["exchange"] == "partial_local_shuffle:exchange_fraction=0.3"
    assert "sweep" not in plain


@pytest.mark.parametrize(
    ("ranks", "world_size", "swept"),
    [
        ("all", 256, None),
        ("256, all", 256, None),
        ("64", 64, None),
        ("64,128,all", 256, [64, 128, 256]),
        ("128, 64", 128, [128, 64]),
    ],
)
def test_several_numbers_of_ranks_are_a_sweep(ranks, world_size, swept):
    text = drafts("mine", {**NEEDED, "ranks": ranks})["mine.yaml"]
    plain = yaml.safe_load(text)
    assert (plain["world_size"], plain["sweep"].get("world_size")) == (world_size, swept)
    assert f" on {', '.join(map(str, swept or [world_size]))} GPUs:" in text.splitlines()[0]


def test_the_runs_are_those_of_every_number_of_ranks_and_every_way(here):
    words = shlex.split(RESEARCHER)
    assert main(["new", "mine", *words, "--ranks", "8,all", "--ways", "local, local-pfs"]) == 0
    names = ["local @8", "local-pfs @8", "local @256", "local-pfs @256"]
    assert list(load_scenario("mine.yaml").runs()) == names
    assert main(["new", "mine", *words, "--ranks", "8,16", "--ways", "local", "--force"]) == 0
    assert list(load_scenario("mine.yaml").runs()) == ["local @8", "local @16"]


def test_an_allreduce_reaches_a_share_of_the_adapters():
    given = {**NEEDED, "hcas": "4", "hca_bandwidth": "100 Gbit/s"}
    allreduce = yaml.safe_load(drafts("mine", given)["mine.yaml"])["workload"]["allreduce"]
    assert (allreduce["channels"], allreduce["inter_host_bus_bandwidth"]) == (4, "42.5 GB/s")


@pytest.mark.parametrize(
    ("name", "answer", "rule"),
    [
        ("hosts", "0", "must be a whole number"),
        ("hosts", "6.4", "must be a whole number"),
        ("taper", "two", "must be a number, at least 1"),
        ("memory", "256", "has no unit"),
        ("pfs_opens", "30 GB/s", "has the unit 'GB/s'"),
        ("sample_size", "0 kB", "must be greater than 0"),
        ("batch_time", "110 ms / 64", "must not be divided"),
        ("accelerator", "a: b", "must be letters"),
        ("format", "png", "must be jpeg or raw"),
        ("ways", "local, partial-2", "must be names between commas"),
        ("ways", "", "must be names between commas"),
        ("ranks", "64 128", "must be whole numbers"),
        ("ranks", "64,,128", "must be whole numbers"),
        ("ranks", "0", "must be whole numbers"),
        ("ssd", "no", "is not a number with a unit"),
    ],
)
def test_a_wrong_answer_is_refused(name, answer, rule):
    ((path, found),) = refused({**NEEDED, name: answer})
    assert path == BY_NAME[name].option
    assert found.startswith(rule)


@pytest.mark.parametrize(
    ("given", "path", "rule"),
    [
        ({"gpus": "4", "hcas": "3"}, "--hcas", "gpus must be a multiple of hcas"),
        ({"ports": "4", "hosts": "4000", "taper": "1"}, "--hosts", ""),
        ({"samples": "3", "batch_size": "1"}, "--ranks", "must not exceed the 3 samples"),
        ({"ranks": "512"}, "--ranks", "must not exceed the 256 GPUs"),
        ({"ranks": "512,64"}, "--ranks", "must not exceed the 256 GPUs"),
        ({"ssd": "1 GB", "ways": "global-ssd"}, "--ways", "global_shuffle keeps 140.9 GB"),
    ],
)
def test_answers_that_do_not_go_together_are_refused_by_their_option(given, path, rule):
    problems = refused({**NEEDED, **given})
    assert any(where == path and rule in what for where, what in problems), problems


def test_line_ends_in_an_answer_write_no_keys():
    assert answered({**NEEDED, "memory": "256\nGB"})["memory"] == "256 GB"
    assert refused({**NEEDED, "memory": "256 GB\nname: x"})


def test_nothing_is_replaced_unless_it_is_asked_for(here, capsys):
    (here / "mine-cluster.yaml").write_text("precious")
    command = ["new", "mine", *shlex.split(RESEARCHER)]
    assert main(command) == 2
    assert "NAME: must not be there already; got mine-cluster.yaml" in capsys.readouterr().err
    assert [path.read_text() for path in here.iterdir()] == ["precious"]
    assert main([*command, "--force"]) == 0
    assert {path.name for path in here.iterdir()} == {"mine.yaml", "mine-cluster.yaml"}
    assert load_scenario("mine.yaml").cluster.name == "mine"


@pytest.mark.parametrize("old", [None, "precious"])
def test_both_files_are_written_or_none(here, monkeypatch, old):
    if old:
        (here / "mine.yaml").write_text(old)
    rename = Path.rename

    def fails(path, target):
        if Path(target) == Path("mine-cluster.yaml"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="No space"):
        write_drafts(Path("mine"), NEEDED, replace=True)
    assert [path.read_text() for path in here.iterdir()] == ([old] if old else [])


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("a b", "must be letters"),
        ("-x.yaml/..", "must be letters"),
        ("missing/mine", "must be in a folder that is there"),
        ("folder", "must not be that of a folder"),
    ],
)
def test_a_name_that_is_none_is_refused(here, capsys, name, rule):
    (here / "folder.yaml").mkdir()
    assert main(["new", *shlex.split(RESEARCHER), "--", name]) == 2
    assert rule in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["folder.yaml"]


@pytest.mark.parametrize("name", ["2024", "true", "1e3", "null"])
def test_names_stay_text_whatever_yaml_makes_of_them(name):
    texts = drafts(name, {**NEEDED, "accelerator": name})
    scenario, machine = map(yaml.safe_load, texts.values())
    assert (scenario["name"], machine["name"], machine["host"]["accelerator"]) == (name,) * 3
    assert list(scenario["workload"]["model"]["accelerators"]) == [name]


def test_a_link_is_not_followed_and_not_replaced(here):
    (here / "mine.yaml").symlink_to("nowhere")
    assert main(["new", "mine", *shlex.split(RESEARCHER)]) == 2
    assert main(["new", "mine", *shlex.split(RESEARCHER), "--force"]) == 0
    assert not (here / "mine.yaml").is_symlink()
    assert not (here / "nowhere").exists()


def test_what_was_measured_of_this_host_can_be_included(here):
    assert main(["new", "mine", *shlex.split(RESEARCHER)]) == 0
    text = (here / "mine.yaml").read_text()
    (here / "mine.yaml").write_text(text.replace("# include: host.yaml", "include: host.yaml"))
    values = {"workload.dataset.decode": "3 ms", "workload.dataset.sample_size.std": "1 kB"}
    (here / "host.yaml").write_text(yaml.safe_dump({"values": values}))
    dataset = load_scenario("mine.yaml").workload.dataset
    assert (dataset.decode_seconds, dataset.stored.spread) == (3e-3, 1e3)


@pytest.mark.parametrize("name", ["hosts", "gpus", "samples", "batch_size", "epochs"])
def test_numbers_beyond_all_measure_are_problems(name):
    with contextlib.suppress(InputError):
        drafts("mine", {**NEEDED, name: "9" * 15})


def test_a_name_may_have_a_folder_and_a_suffix(here):
    (here / "folder").mkdir()
    assert main(["new", "folder/mine.yaml", *shlex.split(RESEARCHER)]) == 0
    assert load_scenario("folder/mine.yaml").name == "mine"


def test_help_has_an_option_for_every_question(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["new", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(question.option in shown for question in QUESTIONS)
    assert verb.new.__doc__.splitlines()[0] in shown
    assert all(BY_NAME[name].option in verb.new.__doc__ for name in NEEDED)
