"""Where a result may be written, and what may be replaced: found out before anything is computed,
and nothing lost."""

import errno
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.report.folders import check_place, room_for, take_place, write_folder
from tests.contents import contents
from tests.fuzz.results import KINDS


@pytest.fixture
def never_simulated(monkeypatch, tmp_path, results_made):
    results_made("validation")  # which a test may want, and is made before
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simshuffle.study.engine.run", lambda *_: pytest.fail("it was simulated"))


def refused(place, *words, replace=True):
    with pytest.raises(InputError) as caught:
        check_place(Path(place), replace=replace)
    (problem,) = caught.value.problems
    assert problem.path == "--out" and problem.remedy and len(str(problem)) < 400
    for word in words:
        assert word in str(problem), str(problem)


# ---------------------------------------------------------------------------------- can be written


def test_a_new_folder_in_new_folders_can_be_made_and_nothing_is_left_of_the_trial(tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "new", tmp_path / "a" / "b" / "c", tmp_path / "empty"):
        check_place(place, replace=False)
        assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


PLACES = {
    "file": "not a folder",
    "file/a/out": "which is a file",
    "nothing": "not a folder",
    "nothing/out": "link to nothing",
    "loop": "not a folder",
    "x" * 256: "too long",
    f"new/{'ü' * 128}": "255 bytes",
    f"new/{'x' * 256}/out": "255 bytes",
    "/".join(["x" * 200] * 30): "too long",
    "a\0b": "cannot be written",
}


@pytest.mark.parametrize(("name", "word"), PLACES.items(), ids=range(len(PLACES)))
def test_a_folder_that_cannot_be_made_is_found_before_the_simulation(
    name, word, tmp_path, never_simulated, capsys
):
    (tmp_path / "file").write_text("mine")
    for link, end in (("nothing", "gone"), ("loop", "loop")):
        (tmp_path / link).symlink_to(tmp_path / end)
    before = sorted(path.name for path in tmp_path.iterdir())
    refused(tmp_path / name, word)
    for verb in (["run", "quickstart"], ["study", "ablate", "quickstart"]):
        assert main([*verb, "--out", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert "--out" in said and (word in said or "\0" in name)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_longest_name_can_be_written(tmp_path):
    for name in ("x" * 255, "ü" * 127):
        write_folder(tmp_path / name, lambda draft: (draft / "meta.json").write_text("{}"))
        assert (tmp_path / name / "meta.json").is_file()


def test_where_the_kernel_makes_no_folder_is_found(tmp_path):
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc here")
    refused("/proc/out", "cannot be written")
    refused("/proc/self/a/b", "cannot be written")


@pytest.mark.parametrize("why", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_a_place_without_permission_or_space_is_found(why, tmp_path, monkeypatch):
    def mkdir(*_, **__):
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(tempfile._os, "mkdir", mkdir)
    refused(tmp_path / "out", os.strerror(why))


def test_a_folder_of_another_user_is_found(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "closed").mkdir(mode=0o500)
    refused(tmp_path / "closed" / "out", "Permission denied")


def test_a_file_system_that_is_read_only_is_found(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        refused(tmp_path / "out", "Read-only")
        refused(tmp_path, "where a file system begins")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_where_a_file_system_begins_is_no_place(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "disk")
    (tmp_path / "disk").mkdir()
    refused(tmp_path / "disk", "where a file system begins")
    check_place(tmp_path / "disk" / "out", replace=False)


# ---------------------------------------------------------------------------------- may be replaced


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_every_kind_is_one_and_replaced_with_force_alone(kind, result_of):
    folder = result_of(kind)
    refused(folder, "another result", "--force", replace=False)
    check_place(folder, replace=True)
    for name in ("notes.txt", "more.csv", "own.png", "raw.npz", ".hidden"):
        (folder / name).write_text("years of work")
        refused(folder, "something else than a result", name)
        refused(folder, "something else than a result", name, replace=False)
        (folder / name).unlink()
    (folder / "thesis").mkdir()
    refused(folder, "something else than a result", "thesis")
    (folder / "thesis").rmdir()
    (folder / "link.csv").symlink_to(folder / "meta.json")
    refused(folder, "something else than a result", "link.csv")
    (folder / "link.csv").unlink()
    meta = folder / "meta.json"
    whole = json.loads(meta.read_text())
    for spoilt in ("", "[]", "3", "{}", "[" * 100_000, '{"kind": 3}', '{"fingerprint": "abc"}'):
        meta.write_text(spoilt)
        refused(folder, "something else than a result")
    meta.write_text(json.dumps(whole))
    check_place(folder, replace=True)


def test_a_foreign_file_among_the_runs_of_a_study_is_kept(result_of):
    folder = result_of("unfinished training")
    check_place(folder, replace=True)
    (folder / "plans").mkdir(exist_ok=True)
    for path in (folder / "plans" / "thesis.tex", folder / "plans" / "deep" / "a.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("years of work")
        refused(folder, "something else than a result", "plans")
        path.unlink()


def test_force_leaves_a_folder_with_something_else_as_it_is(
    tmp_path, result_of, never_simulated, capsys
):
    folder = result_of("validation")
    (folder / "thesis.tex").write_text("years of work")
    before = contents(folder)
    assert main(["run", "quickstart", "--out", str(folder), "--force"]) == 2
    assert "thesis.tex" in capsys.readouterr().err
    assert main(["train", "quick", "--out", str(folder), "--force"]) == 2
    assert "thesis.tex" in capsys.readouterr().err
    assert contents(folder) == before
    # a project of something else that has a meta.json too
    other = tmp_path / "other"
    other.mkdir()
    (other / "meta.json").write_text('{"name": "mine", "version": "1.0"}')
    (other / "index.html").write_text("years of work")
    assert main(["run", "quickstart", "--out", str(other), "--force"]) == 2
    assert len(contents(other)) == 2


def test_what_a_killed_process_left_is_no_obstacle(result_of):
    folder = result_of("unfinished training")
    (folder / ".tables.part-abc").mkdir()
    (folder / ".meta.json.part-12").write_text("{")
    check_place(folder, replace=True)


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_folder_takes_the_place_of_another_whatever_its_name(tmp_path, name):
    place = tmp_path / name
    place.mkdir()
    (place / "before").touch()
    with room_for(place, tmp_path) as room:
        draft = Path(room) / name
        draft.mkdir()
        (draft / "after").touch()
        take_place(draft, place)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [
        Path(name),
        Path(name, "after"),
    ]
