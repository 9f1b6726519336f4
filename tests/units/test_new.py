"""simshuffle new: what it asks, what it writes, and that what is written is a scenario."""

import contextlib
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from simshuffle import run
from simshuffle.cli import main
from simshuffle.cli import new as verb
from simshuffle.cli import new_machine as machine
from simshuffle.cli.new import write_drafts
from simshuffle.cli.new_answers import complete_answers
from simshuffle.cli.new_questions import BY_NAME, CHOICES, QUESTIONS, questions_of
from simshuffle.cli.new_scenario import draft_texts as drafts_and_left_out
from simshuffle.errors import InputError
from simshuffle.job.scenario.scenario import load_scenario, machine_of
from simshuffle.job.sim.simulate import simulate
from simshuffle.job.verdict import verdict
from simshuffle.spec.library import find_file, read_yaml, shipped_names
from simshuffle.spec.units import Dimension, parse_quantity

TABLES = yaml.safe_load((Path(__file__).parents[1] / "data" / "new.yaml").read_text())
NEEDED = {of.name: of.default for of in questions_of("fat_tree") if of.needed}
SHAPES = {
    "fat_tree": {},
    "dragonfly": {"groups": "4"},
    "rail_optimised": {},
    "torus": {"shape": "4x4x3"},
}
"""What a shape needs beside `NEEDED`."""
RESEARCHER = (
    "--hosts 64 --gpus 4 --accelerator a100 --hcas 2 --hca-bandwidth '200 Gbit/s' --ports 40"
    " --taper 2 --pfs-bandwidth '120 GB/s' --pfs-opens '30 k/s' --samples 10000000"
    " --sample-size '150 kB' --batch-time '0.11 s' --batch-size 64 --gradients '100 MB'"
    " --ssd '3.2 TB'"
)


RESEARCHER_ANY = RESEARCHER.replace(" --ports 40 --taper 2", "")
RUNS = ["global-pfs @256", "global-ssd @256", "local @256", "partial-0.1 streamlined @256"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    return tmp_path


def drafts(name, given):
    """The texts of the files, by their names."""
    return drafts_and_left_out(name, given)[0]


def drafted(**given):
    """The scenario and the machine that are written."""
    return tuple(map(yaml.safe_load, drafts("mine", {**NEEDED, **given}).values()))


def check_and_run(file, ranks=16):
    few = (f"world_size={ranks}", "epochs=1", "workload.dataset.num_samples=2048", "sweep={}")
    sets = [word for value in few for word in ("--set", value)]
    assert main(["check", file]) == 0
    assert main(["run", file, *sets, "--processes", "1", "--out", "result"]) == 0


def test_the_machine_of_a_researcher_from_options(here, monkeypatch, capsys):
    """With all that is needed nothing is asked, on a terminal either."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", None)
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
    assert list(scenario.runs()) == RUNS


def test_what_is_written_can_be_simulated(here):
    assert main(["new", "mine", *shlex.split(RESEARCHER)]) == 0
    small = {"world_size": 8, "epochs": 1, "workload.dataset.num_samples": 8 * 64 * 3}
    epochs = run(load_scenario("mine.yaml", small)).epochs.set_index("run")["epoch_s"]
    # three batches of 0.11 s at least
    assert epochs.min() > 0.33
    assert list(epochs.index) == [run.replace("256", "8") for run in RUNS]


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
    assert "Read bandwidth of the SSD" not in asked
    assert "must be a whole number, at least 1" in said
    for question in questions_of("fat_tree"):
        if question.name not in {"hosts", "ssd_read", "ssd_write"}:
            assert question.advice in said
    assert not {BY_NAME[name].text for name in ("groups", "shape")} & set(asked)
    scenario = load_scenario("mine.yaml")
    assert (scenario.cluster.topology.hosts, scenario.cluster.topology.ports) == (8, 64)
    again = next(line for line in said.splitlines() if line.startswith("The same without"))
    monkeypatch.setattr(typer, "prompt", None)
    texts = [path.read_text() for path in sorted(here.iterdir())]
    assert main([*shlex.split(again.partition(": simshuffle ")[2]), "--force"]) == 0
    assert [path.read_text() for path in sorted(here.iterdir())] == texts


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_every_default_is_an_answer_with_a_source_to_a_key_that_exists(question):
    assert question.problem(question.default) is None
    assert question.default_source
    shape = question.starts[0] if question.starts else "fat_tree"
    given = {"store": "20 GB/s"} if question.name == "store" else {}  # 'none' writes no key
    texts = drafts("mine", {**NEEDED, "topology": shape, **SHAPES[shape], **given})
    plain = yaml.safe_load(texts["mine.yaml"])
    plain["cluster"] = yaml.safe_load(texts["mine-cluster.yaml"])
    for step in question.key.split(".", 1 if question.key.startswith("sweep") else -1):
        plain = plain[step]
    if question.needed or f"{question.name}?" in machine.TEXT + machine.SSD:
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
    shards = {"store": "20 GB/s", "samples_per_shard": "1000"}
    for given in (NEEDED, {**NEEDED, "ssd": "none"}, {**NEEDED, "ssd": "none", **shards}):
        for text in drafts("mine", given).values():
            assert max(map(len, text.splitlines())) <= 101
            assert "?}" not in text


def test_hosts_without_ssd_stage_to_memory():
    scenario, machine = drafted(ssd="none", memory="1 TB")
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


# ------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_passes_check_and_run(here, shape):
    words = [f"--{key}={value}" for key, value in SHAPES[shape].items()]
    assert main(["new", "mine", *shlex.split(RESEARCHER_ANY), "--topology", shape, *words]) == 0
    cluster = load_scenario("mine.yaml").cluster
    assert (cluster.topology.kind, cluster.num_gpus) == (shape, 256)
    check_and_run("mine.yaml")


@pytest.mark.parametrize(("given", "expected"), TABLES["dragonflies"])
def test_a_dragonfly_is_balanced_unless_its_groups_need_more_links(given, expected):
    of = drafted(topology="dragonfly", **given)[1]["topology"]
    keys = ("switches_per_group", "hosts_per_switch", "global_links_per_switch")
    assert [of[key] for key in keys] == expected
    used = of["hosts_per_switch"] * of["hcas_per_host"] + expected[0] - 1 + expected[2]
    assert used <= int(given.get("ports", "40"))


@pytest.mark.parametrize(("given", "expected"), TABLES["rails"])
def test_pods_of_a_rail_optimised_network_have_a_leaf_switch_for_each_rail(given, expected):
    of = drafted(topology="rail_optimised", **given)[1]["topology"]
    assert [of["hosts_per_pod"], of["pods"], of["spine_layout"]] == expected


ANY = {name: answer for name, answer in NEEDED.items() if name != "hosts"}


@pytest.mark.parametrize("name", shipped_names("topologies"))
def test_every_shipped_machine_is_a_start(name):
    """Its numbers are as they are, with their sources, and the rest follows from them."""
    texts = drafts("mine", {**ANY, "topology": name, "ranks": "4"})
    copied, known = texts["mine-cluster.yaml"], machine_of(name)
    assert yaml.safe_load(copied) == read_yaml(find_file(name, "topologies"))[0]
    allreduce = yaml.safe_load(texts["mine.yaml"])["workload"]["allreduce"]
    assert allreduce["channels"] == known.host.hcas
    reached = parse_quantity(allreduce["inter_host_bus_bandwidth"], Dimension.BANDWIDTH)
    hcas = known.host.hcas * known.topology.link_bandwidth
    assert reached == pytest.approx(0.85 * hcas, rel=1e-3)
    assert f"a copy of {name}." in copied


def test_a_shipped_machine_passes_check_and_run(here):
    words = ["--topology", "juwels-booster", "--ranks", "16"]
    words += [word for key, value in ANY.items() for word in (BY_NAME[key].option, value)]
    assert main(["new", "mine", *words]) == 0
    check_and_run("mine.yaml")


@pytest.mark.parametrize("file", ["net.json", "net.graphml", "fabric.yaml"])
def test_a_file_of_a_network_or_a_machine_is_a_start(here, file):
    """A fat tree of 16 hosts with a link each, exported, and imported as a machine: what is written
    in another folder finds the network."""
    (here / "sub").mkdir()
    form = "json" if file.endswith("yaml") else Path(file).suffix[1:]
    assert main(["machine", "export", "small-fat-tree", "--to", form, "--out", f"net.{form}"]) == 0
    if file.endswith("yaml"):
        assert main(["machine", "import", "net.json", "--out", file]) == 0
    words = [word for key, value in ANY.items() for word in (BY_NAME[key].option, value)]
    assert main(["new", "sub/mine.yaml", "--topology", file, *words, "--ranks", "4"]) == 0
    assert load_scenario("sub/mine.yaml").name == "mine"
    cluster, known = load_scenario("sub/mine.yaml").cluster, machine_of("small-fat-tree")
    assert cluster.topology.num_hosts == known.topology.num_hosts
    assert cluster.host.hcas == known.topology.links_per_host
    check_and_run("sub/mine.yaml", ranks=4)


def test_a_wizard_asks_what_the_network_needs(here, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []

    def prompt(text, default, err):
        asked.append(text.strip())
        return {BY_NAME["topology"].text: "torus", BY_NAME["shape"].text: "4x4"}.get(
            asked[-1], default
        )

    monkeypatch.setattr(typer, "prompt", prompt)
    assert main(["new", "mine"]) == 0
    assert asked == [of.text for of in questions_of("torus")]
    assert load_scenario("mine.yaml").cluster.topology.shape == [4, 4]


@pytest.mark.parametrize("typed", [False, True])
def test_guesses_are_asked_for_only_if_a_number_was_typed(here, monkeypatch, typed):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    replies = {BY_NAME["topology"].text: "abci"}
    if typed:
        replies[BY_NAME["batch_time"].text] = "12 ms"

    def prompt(text, default, err):
        asked.append(text.strip())
        return replies.get(asked[-1], default)

    monkeypatch.setattr(typer, "prompt", prompt)
    assert main(["new", "mine", "--ranks", "16"]) == 0
    assert (verb.SOURCE_QUESTIONS[0].text in asked) is typed


# ------------------------------------------------------------------------ what fits, and is timed


@pytest.mark.parametrize("case", TABLES["strategies"], ids=lambda case: str(case["given"]))
def test_strategies_that_fit_are_compared_and_others_named(here, capsys, case):
    words = [word for key, value in case["given"].items() for word in (f"--{key}", value)]
    assert main(["new", "mine", *shlex.split(RESEARCHER), *words]) == 0
    said, text = capsys.readouterr().err, (here / "mine.yaml").read_text()
    comments = " ".join(line.strip(" #") for line in text.splitlines() if line.strip()[:1] == "#")
    found = list(load_scenario("mine.yaml").runs())
    assert list(dict.fromkeys(name.split(" ")[0] for name in found)) == case["runs"]
    left_out = case["left_out"]
    assert said.count("Left out: ") == comments.count("Left out: ") == len(left_out)
    for part in left_out:
        assert f"Left out: {part}" in said
        assert f"Left out: {part}" in comments


def passes_of(*words):
    """s of FW+BW of each of 16 ranks in an epoch of 5 iterations of the researcher; s by which the
    backward pass is slowed in an iteration after the first, which ranks do not begin together; and
    what `check` says of an iteration's compute."""
    assert main(["new", "mine", *shlex.split(RESEARCHER), "--force", *words]) == 0
    values = {
        "world_size": 16,
        "epochs": 1,
        "workload.dataset.num_samples": 16 * 64 * 5,
        "workload.jitter": {"compute": 0.0, "read": 0.0},
        "workload.exchange": "local_shuffle",
        "time_tolerance": 0,
    }
    scenario = load_scenario("mine.yaml", values)
    rows = simulate(scenario).phases
    took = rows.assign(s=rows["end_s"] - rows["start_s"])
    each = took[took["phase"].isin(["forward", "backward"])].groupby("rank")["s"].sum()
    slowed = took[(took["phase"] == "slowdown") & (took["iteration"] > 1)]["s"].sum() / (4 * 16)
    return each.to_numpy(), slowed, verdict(scenario, "")["compute"]


def test_a_batch_timed_distributed_is_found_again(here):
    """0.11 s in five iterations: FW+BW is what was given, and nothing slows it once more."""
    passes, slowed, compute = passes_of("--timed", "distributed")
    assert passes == pytest.approx([5 * 0.11] * 16, rel=1e-9)
    assert slowed == 0
    assert compute == pytest.approx({"given_s": 0.11, "hooks_s": 0, "jitter_s": 0, "slowed_s": 0})


def test_a_batch_timed_on_one_gpu_gets_hooks_and_is_slowed(here):
    """As `check` says it: the parts are what is simulated."""
    passes, slowed, compute = passes_of()
    assert passes == pytest.approx([5 * (0.11 + 3e-3)] * 16, rel=1e-9)
    assert 5 * (compute["given_s"] + compute["hooks_s"]) == pytest.approx(passes[0], rel=1e-9)
    assert 0 < compute["slowed_s"] == pytest.approx(slowed, rel=1e-3)
    assert "hooks: 3 ms, slowdown: 0.25" in (here / "mine.yaml").read_text()


@pytest.mark.parametrize("timed", CHOICES["timed"])
def test_without_overlap_nothing_is_added(here, timed):
    passes, slowed, _ = passes_of("--timed", timed, "--overlap", "none")
    assert passes == pytest.approx([5 * 0.11] * 16, rel=1e-9)
    assert slowed == 0


def test_one_way_is_no_sweep():
    plain, _ = drafted(ways="partial-0.3")
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
    several = ["--ranks", "8", "--ranks", "16", "--ways", "local", "--force"]
    assert main(["new", "mine", *words, *several]) == 0
    assert list(load_scenario("mine.yaml").runs()) == ["local @8", "local @16"]


def test_an_allreduce_reaches_a_share_of_the_adapters():
    allreduce = drafted(hcas="4", hca_bandwidth="100 Gbit/s")[0]["workload"]["allreduce"]
    assert (allreduce["channels"], allreduce["inter_host_bus_bandwidth"]) == (4, "42.5 GB/s")


def test_line_ends_in_an_answer_write_no_keys():
    assert complete_answers({**NEEDED, "memory": "256\nGB"})["memory"] == "256 GB"
    with pytest.raises(InputError):
        drafts("mine", {**NEEDED, "memory": "256 GB\nname: x"})


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
        write_drafts(Path("mine"), NEEDED)
    assert [path.read_text() for path in here.iterdir()] == ([old] if old else [])


@pytest.mark.parametrize("name", ["2024", "true", "1e3", "null"])
def test_names_stay_text_whatever_yaml_makes_of_them(name):
    texts = drafts(name, {**NEEDED, "accelerator": name})
    scenario, machine = map(yaml.safe_load, texts.values())
    assert (scenario["name"], machine["name"], machine["host"]["accelerator"]) == (name,) * 3
    assert list(scenario["workload"]["model"]["accelerators"]) == [name]


def test_a_name_of_a_folder_is_refused(here, capsys):
    (here / "folder.yaml").mkdir()
    assert main(["new", "folder", *shlex.split(RESEARCHER)]) == 2
    assert "must not be the path of a folder" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["folder.yaml"]


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


def test_help_has_an_option_for_every_question(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["new", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(question.option in shown for question in QUESTIONS)
    assert verb.new.__doc__.splitlines()[0] in shown
    assert all(BY_NAME[name].option in verb.new.__doc__ for name in NEEDED)


@pytest.mark.parametrize(
    "text",
    [
        "a long name " * 20,
        "yes: " + "it's a long text in quotes " * 10,
        "- " + "x " * 200,
        "two lines\nof a long text" + " with blanks" * 10,
        "8",
        "",
    ],
)
def test_a_text_is_yaml_on_one_line_however_long_it_is(text):
    written = machine.yaml_scalar(text)
    assert "\n" not in written
    assert yaml.safe_load(f"name: {written}  # a comment") == {"name": text}


@pytest.mark.parametrize(
    ("answer", "written"),
    [("5M", 5_000_000), ("1.28 M", 1_280_000), ("0.5k", 500), ("1,281,167", 1_281_167), ("64", 64)],
)
def test_counts_may_be_short(answer, written):
    assert BY_NAME["samples"].problem(answer) is None
    assert int(BY_NAME["samples"].write_out(answer)) == written


@pytest.mark.parametrize("answer", ["1.2345k", "1,28", "5m", "M", "0k"])
def test_what_is_no_whole_number_stays_one_that_is_refused(answer):
    assert BY_NAME["samples"].problem(answer) is not None


def test_a_short_count_is_written_out(tmp_path):
    arguments = ["--hosts", "2", "--samples", "0.05M", "--sample-size", "110 kB"]
    arguments += ["--batch-size", "8", "--batch-time", "20 ms", "--gradients", "10 MB"]
    assert main(["new", str(tmp_path / "mine"), *arguments]) == 0
    assert "num_samples: 50000\n" in (tmp_path / "mine.yaml").read_text()


def test_what_counts_as_measured_is_said_until_guesses_are_named(tmp_path, capsys):
    arguments = ["--hosts", "2", "--samples", "50000", "--sample-size", "110 kB"]
    arguments += ["--batch-size", "8", "--batch-time", "20 ms", "--gradients", "10 MB"]
    assert main(["new", str(tmp_path / "mine"), *arguments, "--pfs-opens", "9 k/s"]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "Taken as measured: --pfs-opens, --batch-time." in text
    assert "--estimated pfs-opens" in text
    assert main(["new", str(tmp_path / "two"), *arguments, "--estimated", "batch-time"]) == 0
    assert "Taken as measured" not in capsys.readouterr().err
