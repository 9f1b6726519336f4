"""The command line as people meet it: groups, examples, -h, -q, -v, completion, progress, --out."""

import dataclasses
import gc
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from simshuffle.cli import app, main
from simshuffle.cli.common import reset_volume, set_volume, share_progress, show, study_progress
from simshuffle.cli.help import MEANT_VERBS
from simshuffle.errors import InputError
from simshuffle.moved import OLD_OPTIONS, OLD_VERBS, REFUSED_VERBS
from simshuffle.spec.library import shipped_names
from simshuffle.study import engine, standing
from simshuffle.study.options import fields_of
from simshuffle.study.registry import REMOVED
from simshuffle.study.registry import verbs as study_verbs
from simshuffle.study.standing import FIRST_LINE, Standing
from tests.toy import TOY, Square, asked
from tests.units.test_cli import python

GROUPS = {
    "Describe": ["new", "check"],
    "Simulate": ["run", "sweep", "congestion", "plan", "accuracy", "month", "train"],
    "Results": ["compare", "doctor", "figure", "report"],
    "Rarely": ["machine", "results", "study"],
}
BELOW = {
    "machine": ["calibrate", "export", "import", "probe", "show", "testbed"],
    "results": ["export", "plot", "show", "verify"],
    "study": [
        *("ablate", "audit", "blame", "collective", "hiding", "loader", "oracle"),
        *("replay", "schema", "sizes", "tta", "validate"),
    ],
}
HIDDEN = ["list"]
"""Verbs of the first level that its help names in its first lines alone."""
VERBS = HIDDEN + [verb for group, verbs in GROUPS.items() if group != "Rarely" for verb in verbs]
VERBS += [f"{group} {verb}" for group, verbs in BELOW.items() for verb in verbs]
LINES = 40
"""Of a screen."""
DATA = Path(__file__).parents[1] / "data"
COMMAND = typer.main.get_command(app)
SMALL = ["--set", "world_size=8", "--set", "epochs=1"]
LOCAL = ["run", "quickstart", *SMALL, "--set", "workload.exchange=local_shuffle"]
OUT = {
    "run": LOCAL,
    "sweep": ["sweep", "quickstart", *SMALL, "--over", "seed=1,2"],
    "study ablate": ["study", "ablate", "quickstart", *SMALL, "--seeds", "1"],
    "study hiding": ["study", "hiding", "quickstart", "--world-size", "8"],
    "congestion": ["congestion", "quickstart", "--world-size", "8"],
    "study sizes": ["study", "sizes", "quickstart"],
    "plan": ["plan", "quickstart", *SMALL],
    "accuracy": ["accuracy", "quickstart", *SMALL],
    "study loader": ["study", "loader", "--order", "own:shuffle=global"],
    "month": [
        *("month", "quickstart", *SMALL, "--days", "2", "--seeds", "2"),
        *("--set", "sweep={}", "--set", "workload.checkpoint.period=10 min"),
    ],
    "study oracle": ["study", "oracle", "paper/oracle", "--world-sizes", "4"],
    "train": ["train", "quick"],
    "study tta": ["study", "tta", "quick", "quickstart", "--scale", "trained"],
    "study validate": ["study", "validate", "--only", "testbed"],
    "machine calibrate": ["machine", "calibrate", "nccl.txt"],
    "machine testbed": ["machine", "testbed", "--quick"],
    "study replay": ["study", "replay", "case.json"],
}
"""Of every verb with a result, words that ask for one."""


def command_of(verb):
    """The command of a verb, such as 'run' or 'study ablate'."""
    found = COMMAND
    for word in verb.split():
        found = found.commands[word]
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_wrapped_by_the_terminal_and_not_by_the_source(verb):
    command = command_of(verb)
    assert "\n" not in command.help.replace("\n\n", "")
    assert "\n" not in command.short_help
    assert command.short_help.endswith(".")


def examples(verb):
    """The words of each example of a verb, without what the shell does."""
    title, *lines = command_of(verb).epilog.splitlines()
    assert title == "Examples:"
    words = [shlex.split(line.removeprefix("sudo ").partition(" > ")[0]) for line in lines]
    begin = ["simshuffle", *verb.split()]
    assert all(each[: len(begin)] == begin for each in words)
    return [each[len(begin) :] for each in words]


class Reached(Exception):
    """What was asked was found right, and would be done now."""


@pytest.fixture
def nothing_is_done(monkeypatch):
    def reached(*_, **__):
        raise Reached

    for name in ("engine.run", "standing.study_progress"):
        module, function = name.split(".")
        target = importlib.import_module(f"simshuffle.study.{module}")
        monkeypatch.setattr(target, function, reached)
    replay = importlib.import_module("simshuffle.fabric.network.replay")
    monkeypatch.setattr(replay, "replay", reached)
    measure = importlib.import_module("simshuffle_testbed.measure")
    monkeypatch.setattr(measure, "measure_all", reached)


@pytest.fixture
def usual():
    reset_volume()
    yield
    reset_volume()


# --------------------------------------------------------------------------------------------- help


def test_the_help_lists_every_verb_once_in_its_group(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert main([]) == 2 and capsys.readouterr().out == shown
    assert len(shown.splitlines()) <= LINES
    listed, group = {}, ""
    for line in shown.splitlines():
        if title := re.match(r"╭─ (\w+) ─", line):
            group = title[1]
        elif verb := re.match(r"│ ([a-z]+)  ", line):
            listed.setdefault(group, []).append(verb[1])
    assert listed == GROUPS
    for name, verbs in BELOW.items():
        assert sorted(COMMAND.commands[name].commands) == sorted(verbs)
    assert len(COMMAND.commands) == sum(map(len, GROUPS.values())) + len(HIDDEN)


@pytest.mark.parametrize("old", sorted(OLD_VERBS))
def test_the_old_name_of_a_verb_says_the_new_one_and_works(old, capsys):
    now = OLD_VERBS[old]
    assert main([*old.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == (
        f"'simshuffle {old}' is 'simshuffle {now}' now; the old name goes in 0.4.\n"
    )
    assert main([*now.split(), "--help"]) == 0
    new = capsys.readouterr()
    assert shown.out.splitlines()[3:] == new.out.splitlines()[3:]
    assert new.err == ""


@pytest.mark.parametrize("old", sorted(REFUSED_VERBS))
def test_an_older_name_of_a_verb_is_refused_with_the_new_one(old, capsys):
    now = REFUSED_VERBS[old]
    assert main([old, "--help"]) == 2
    assert f"Write 'simshuffle {now}'." in capsys.readouterr().err
    assert command_of(now)


@pytest.mark.parametrize("meant", sorted(MEANT_VERBS))
def test_a_word_of_other_programs_says_the_verb(meant, capsys):
    assert main([meant, "quickstart"]) == 2
    remedy = f"{meant}: is no verb. Write 'simshuffle {MEANT_VERBS[meant]}'."
    assert remedy in capsys.readouterr().err
    assert command_of(MEANT_VERBS[meant])


def test_an_option_that_may_be_a_key_says_how_keys_are_set(capsys):
    hint = "Keys of a scenario are set so: --set batch_size=VALUE"
    assert main(["run", "quickstart", "--batch-size", "3"]) == 2
    assert hint in capsys.readouterr().err
    assert main(["list", "--batch-size", "3"]) == 2
    assert "--set" not in capsys.readouterr().err


def test_a_removed_verb_says_what_replaces_it(capsys):
    assert main(["study", "policies", "--help"]) == 2
    assert "policies: was removed" in (shown := capsys.readouterr().err)
    assert REMOVED["policies"] in shown


@pytest.mark.parametrize("old", sorted(OLD_OPTIONS))
def test_the_old_name_of_an_option_says_the_new_one_and_works(old, capsys, nothing_is_done):
    *verb, option = old.split()
    for words in ([option, "wire"], [f"{option}=wire"]):
        with pytest.raises(Reached):
            main([*OUT[" ".join(verb)], *words])
        told = f"{option} is {OLD_OPTIONS[old]} now; the old name goes in 0.4.\n"
        assert told in capsys.readouterr().err
    with pytest.raises(Reached):
        main([*OUT[" ".join(verb)], option, "wire", "-q"])
    assert capsys.readouterr().err == ""
    assert main([*OUT[" ".join(verb)], option, "nothing"]) == 2
    assert f"{OLD_OPTIONS[old]}: must be" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], *(verb.split() for verb in VERBS)], ids=" ".join)
def test_h_is_help_and_names_no_types_of_python(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*words, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert not re.findall(r"<\w[\w\[\] ]*>", short)
    assert all(option in short for option in ("-h", "-q", "-v", "--quiet", "--verbose"))


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_shows_examples_that_fit_and_parse(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*verb.split(), "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in command_of(verb).epilog.splitlines():
        assert line in shown  # whole, so that it can be copied
    for words in examples(verb):
        context = command_of(verb).make_context(verb, list(words))
        names = {"scenario": "scenarios", "study": "studies"}
        for key in names.keys() & context.params.keys():
            given = context.params[key] or []
            for name in map(str, given if isinstance(given, list) else [given]):
                own = name.endswith(".yaml") or name.startswith("results/")
                assert own or name in shipped_names(names[key])


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([*verb.split(), *words], id=f"{verb}-{number}")
        for verb in OUT
        for number, words in enumerate(examples(verb))
        if not any(re.match(r"results/|.*\.(yaml|csv|json|txt)$", word) for word in words)
    ],
)
def test_examples_ask_for_what_there_is(words, here, nothing_is_done):
    with pytest.raises(Reached):
        main(words)


def test_the_example_of_check_is_valid(capsys):
    assert main(["check", *examples("check")[0]]) == 0
    assert "local @64" in capsys.readouterr().out


# -------------------------------------------------------------------------------------------- --out


def test_every_verb_that_computes_is_asked_for_its_out():
    with_out = {verb for verb in VERBS if any(p.name == "out" for p in command_of(verb).params)}
    # these make no result folder, and two have words behind --: tests of theirs say what may be at
    # --out
    assert with_out == OUT.keys() | {
        *("study audit", "doctor"),
        *("study schema", "report", "figure", "results export", "results plot"),
        *("machine import", "machine export", "machine show"),
    }


@pytest.mark.parametrize("kind", ["wrong kind", "something else"])
@pytest.mark.parametrize("verb", OUT)
def test_out_is_checked_before_anything_is_done(verb, kind, here, capsys, nothing_is_done):
    nccl = (DATA / "calibrate" / "nccl-1-host.txt").read_text()
    (here / "nccl.txt").write_text(nccl)
    case = {"links": {"capacity": [1e9], "latency": [0]}, "flows": {"size": [1e9], "route": [[0]]}}
    (here / "case.json").write_text(json.dumps(case))
    out = here / "taken"
    if verb == "study replay":  # a file, and not the case itself
        out = here / ("case.json" if kind == "something else" else "taken")
        (here / "taken" / "case.csv").mkdir(parents=True)  # it would be that file
    elif kind == "wrong kind":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine.txt").write_text("mine")
    before = sorted(path.name for path in here.rglob("*"))
    assert main([*OUT[verb], "--out", str(out)]) == 2
    assert "--out: " in capsys.readouterr().err
    assert sorted(path.name for path in here.rglob("*")) == before


# ---------------------------------------------------------------------------------------- -q and -v


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a result, made with -v: (folder, stdout, stderr)."""
    folder = tmp_path_factory.mktemp("made")
    words = ["-m", "simshuffle", *LOCAL, "--out", "out", "--verbose"]
    done = python(*words, cwd=folder)
    return folder, done.stdout, done.stderr


def test_verbose_names_versions_folder_and_every_cell(made):
    _, printed, told = made
    assert re.search(r"^simshuffle \d\S+, Python 3\S+$", told, re.MULTILINE)
    assert re.search(r"\bnumpy \d", told)
    assert re.search(r"^fingerprint [0-9a-f]{12}, result folder out$", told, re.MULTILINE)
    assert re.findall(r"^run (.*): to be done$", told, re.MULTILINE) == ["local @8"]
    assert "Tables: out" in printed


@pytest.mark.usefixtures("usual")
def test_details_of_a_study_are_printed_before_the_result_and_with_verbose_alone(capsys):
    result = engine.run(
        dataclasses.replace(TOY, details=lambda result: ["every square"]), asked(Square(2))
    )
    show(result, None, json=False)
    usual = capsys.readouterr().out
    assert "every square" not in usual
    set_volume(quiet=False, verbose=True)
    show(result, None, json=False)
    assert capsys.readouterr().out == f"every square\n{usual}"
    show(result, None, json=False, table_format="markdown")
    assert "every square" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["-q", *LOCAL], [*LOCAL, "-q"], [*LOCAL, "--quiet"]])
def test_quiet_prints_the_result_alone(words, made, monkeypatch, capsys):
    monkeypatch.chdir(made[0])
    assert main([*LOCAL, "--out", "out"]) == 0
    usual = capsys.readouterr()
    assert "nothing was simulated" in usual.err
    assert main([*words, "--out", "out"]) == 0
    quiet = capsys.readouterr()
    assert (quiet.out, quiet.err) == (usual.out, "")
    # for one command alone
    assert main([*LOCAL, "--out", "out"]) == 0
    assert capsys.readouterr() == usual
    # -v prints details first, then the same
    assert made[1].endswith(usual.out)
    assert made[1] != usual.out


def test_quiet_shows_no_progress(usual):
    set_volume(quiet=True, verbose=False)
    with study_progress("run") as tell:
        assert tell is None
    with share_progress("replay") as report:
        assert report is None
    with pytest.raises(InputError):
        set_volume(quiet=False, verbose=True)


# ----------------------------------------------------------------------------------------- progress


@pytest.fixture
def clock(monkeypatch):
    """The clock of the progress, which a test sets: [s]."""
    now = [0.0]
    monkeypatch.setattr(standing, "monotonic", lambda: now[0])
    monkeypatch.setattr(standing, "FIRST_LINE", FIRST_LINE)
    return now


def test_without_a_terminal_a_line_comes_after_5_s_and_then_every_30_s(clock, capsys):
    with study_progress("run") as tell:
        for second in range(0, 100):
            clock[0] = float(second)
            tell(Standing(3, 12, 0.25, 240.0, {"local @8": second / 100}))
    assert capsys.readouterr().err.splitlines() == [
        f"25%: 3 of 12 runs done, about 4 min left (local @8 {second}%)"
        for second in (5, 35, 65, 95)
    ]


def test_what_is_no_study_tells_its_share_too(clock, capsys):
    with share_progress("replay") as report:
        report(0.0)
        clock[0] = 31.0
        report(0.5)
    assert capsys.readouterr().err == "50%: replay, about 31 s left (replay 50%)\n"


# --------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("simshuffle tr", ["train"]),
        ("simshuffle run quick", ["quickstart"]),
        ("simshuffle compare --js", ["--json"]),
        ("simshuffle train qu", ["quick"]),
        ("simshuffle run ./", []),
        ("simshuffle study schema to", ["topology"]),
        ("simshuffle machine export abci-", ["abci-3", "abci-a"]),
        ("simshuffle study collective quicks", ["quickstart"]),
        ("simshuffle study collective jup", ["jupiter"]),
        ("simshuffle results show f", ["first"]),
        ("simshuffle results verify res", ["results/second"]),
        ("simshuffle results plot ./", ["./first"]),
        ("simshuffle compare first qui", ["quickstart"]),
        ("simshuffle compare fi", ["first"]),
        ("simshuffle study tta f", ["first", "fractions"]),
        ("simshuffle run quickstart --to m", ["markdown"]),
    ],
)
def test_the_shell_completes_verbs_options_shipped_names_and_results(line, completed, tmp_path):
    for folder in ("first", "results/second"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "meta.json").touch()
    (tmp_path / "fifth").mkdir()
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    code = "from simshuffle.cli import entry_point; entry_point()"
    done = python("-c", code, cwd=tmp_path, **asked, _SIMSHUFFLE_COMPLETE="complete_bash")
    assert done.stdout.split() == completed, done.stderr


def test_the_script_of_a_shell_is_printed(capsys, monkeypatch):
    # it would be that of the shell in which the tests run, which may have none
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    with pytest.raises(SystemExit) as end:
        main(["--show-completion", "bash"])
    assert end.value.code in {0, None}
    assert "_SIMSHUFFLE_COMPLETE=complete_bash" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------- memory


def test_a_command_looks_for_garbage_less_often_and_a_program_that_calls_main_as_it_did(tmp_path):
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    assert main([*LOCAL, "--out", str(tmp_path / "out")]) == 0
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() <= frozen  # what the tests hold may have become less
    code = (
        "import gc, sys, simshuffle.cli as cli\n"
        "try: cli.entry_point()\n"
        "except SystemExit as end:"
        " print(end.code, gc.get_threshold()[0], gc.get_freeze_count() > 0)"
    )
    for words, said in (
        ([*LOCAL, "--out", "again"], "0 10000 True"),
        (["list"], "0 1000000 True"),  # frozen at its end
    ):
        done = python("-c", code, *words, cwd=tmp_path)
        assert done.stdout.splitlines()[-1] == said, done.stderr


def test_commas_part_several_numbers_of_every_option():
    numbers = (tuple[int, ...], tuple[float, ...])
    records = [verb.options for verb in study_verbs().values()]
    lists = [of for each in records for of in fields_of(each) if of.type in numbers]
    assert {"--world-size", "--world-sizes", "--threads", "--target"} <= {of.flag for of in lists}
    for of in lists:
        assert of.option.many
        assert [*map(float, of.read(["64,224", "512"]))] == [64, 224, 512]
    (hiding,) = (each for each in records if each.__name__ == "HidingOptions")
    (variant,) = (of for of in fields_of(hiding) if of.name == "variant")
    assert variant.read(["wire, pair"]) == ["wire", "pair"]


def test_options_of_a_verb_are_made_when_one_is_read():
    group = typer.main.get_command.__wrapped__(app)
    for name in ("run", "check"):
        assert not {"params", "callback"} & vars(group.commands[name]).keys()
    assert "seeds" in {option.name for option in group.commands["run"].params}
    assert {"params", "callback"} <= vars(group.commands["run"]).keys()
    assert "params" not in vars(group.commands["check"])


DOCSTRING = """
import sys
from simshuffle.report import style
style.load_artists()
assert "matplotlib" not in sys.modules
if {leaves_out}:
    style.leave_out_property_tables()
style.load_artists()
from matplotlib.artist import kwdoc
from matplotlib.lines import Line2D
print("dash_capstyle" in Line2D.set.__doc__, "dash_capstyle" in kwdoc(Line2D))
"""


@pytest.mark.parametrize("leaves_out", [True, False])
def test_only_a_command_imports_matplotlib_without_tables_of_properties(tmp_path, leaves_out):
    printed = python("-c", DOCSTRING.format(leaves_out=leaves_out), cwd=tmp_path).stdout
    assert printed.split() == [str(not leaves_out), "True"]
