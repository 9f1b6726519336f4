"""What is too large for the machine is refused before the first cell begins, with its estimate."""

import time
from pathlib import Path

import pytest

from simshuffle import load_scenario, run
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.study import engine, size
from simshuffle.study.cell_times import CellTimes
from simshuffle.study.size import Resources, available_memory, check_size
from tests.toy import TOY, Square, asked

GB = 10**9


def refused(*cells, memory=GB, at_once=1):
    with pytest.raises(InputError) as caught:
        check_size(cells, Resources(memory, at_once))
    return str(caught.value)


def test_a_cell_that_needs_more_memory_than_is_free_is_refused():
    text = refused(Square(1), Square(2, bytes_needed=3e9))
    assert "memory: must fit into the free memory, 1 GB; got 3 GB by estimate, number 2" in text
    assert "--force-size" in text
    check_size([Square(2, bytes_needed=0.9e9)] * 5, Resources(GB, 1))
    check_size([], Resources(0.0, 1))


def test_cells_that_take_longer_than_anybody_means_are_refused():
    """A cell of number n costs 10 + n s: two of them 2 h each, side by side or not."""
    longest = size.LONGEST_S
    many = [Square(int(longest / 2))] * 3
    assert "time: must end within 24.0 h on this machine; got 36.0 h" in refused(*many)
    check_size(many, Resources(GB, 2))
    assert "got 48.0 h by estimate, 1 to do, 8 at once" in refused(
        Square(int(2 * longest)), at_once=8
    )


def test_a_run_is_refused_and_done_all_the_same_if_that_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("simshuffle.study.executors.available_memory", lambda: 1e6)
    small = ["--set", "world_size=8", "--set", "epochs=1", "--set", "sweep={}"]
    words = ["run", "quickstart", *small, "--out", str(tmp_path / "r")]
    assert main(words) == 2
    assert "memory: must fit into the free memory" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    over = ["sweep", "quickstart", "--over", "seed=1,2", *small[:4], "--out", str(tmp_path / "s")]
    assert main(over) == 2
    assert main([*words, "--force-size"]) == 0
    assert main(words) == 0  # it is there already


def test_functions_have_the_same(monkeypatch):
    monkeypatch.setattr(size, "LONGEST_S", 1e-3)
    scenario = load_scenario("quickstart", {"sweep": {}, "world_size": 8, "epochs": 1})
    with pytest.raises(InputError, match="time: must end within 0 s"):
        run(scenario)
    assert len(run(scenario, force_size=True).epochs) == 1


def test_ten_million_ranks_are_refused_within_seconds(tmp_path, monkeypatch, capsys):
    """Of a generated fat tree, which is not built for that."""
    monkeypatch.setattr("simshuffle.study.executors.available_memory", lambda: 32e9)
    cables = "link_bandwidth: 12.5 GB/s, cable_latency: 50 ns, switch_latency: 90 ns"
    changed = (
        "cluster=small-fat-tree",
        f"cluster.topology={{kind: fat_tree, hosts: 200000, ports: 512, {cables}}}",
        "cluster.host.gpus=64",
        "world_size=10000000",
        "workload.dataset={name: d, num_samples: 20000000, sample_size: {mean: 1 kB}, source: x}",
        "workload.local_batch_size=1",
        "workload.exchange=local_shuffle",
        "sweep={}",
    )
    words = [word for value in changed for word in ("--set", value)]
    begin = time.process_time()
    assert main(["run", "quickstart", *words, "--out", str(tmp_path / "r")]) == 2
    assert time.process_time() - begin < 30
    assert "memory: must fit into the free memory" in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "current", "given_up"), [size.LIMITS[0], size.LIMITS[1]])
def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch, limit, current, given_up):
    """Of 100 MB 70 are in use, 20 of these by files that the system can drop: 50 MB are free."""
    monkeypatch.setattr(size, "CONTROL_GROUPS", tmp_path)
    (tmp_path / limit).write_text("100000000\n")
    (tmp_path / current).write_text("70000000\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\n{given_up} 20000000\n")
    assert available_memory() == 50e6
    (tmp_path / limit).write_text("max\n")
    assert available_memory() > 50e6


def test_groups_around_that_of_the_process_count_too(tmp_path, monkeypatch):
    """Of version 1 and 2; other controllers than memory are no matter."""
    groups = "0::/user/job\n5:memory:/batch/one\n6:cpu:/other"
    read_text = Path.read_text

    def read(path, **options):
        return groups if path == Path("/proc/self/cgroup") else read_text(path, **options)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(size, "CONTROL_GROUPS", tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in size._find_control_groups()]
    listed = [".", "memory", "user/job", "user", "memory/batch/one", "memory/batch"]
    assert sorted(names) == sorted(listed)


def test_cells_of_a_kind_that_took_long_count_as_long(monkeypatch):
    """Three times what was estimated at most; of another kind as estimated."""
    kind = Square(1).timed_as

    def least(factor, known=kind):
        times = {known: CellTimes(factor, 1.5, 9)}
        monkeypatch.setattr(size, "calibrations", lambda: times)
        cells = [Square(int(0.4 * size.LONGEST_S))] * 2
        try:
            check_size(cells, Resources(GB, 1))
        except InputError as error:
            return error.problems[0].value.split()[0]
        return None

    assert (least(1.0), least(2.0), least(9.0)) == (None, "38.4", "57.6")
    assert least(9.0, "another") is None
    # two cells on more processes than there are cells: each by itself
    monkeypatch.setattr(size, "calibrations", dict)
    both = [Square(int(0.9 * size.LONGEST_S))] * 2
    check_size(both, Resources(GB, 8))
    assert "got 43.2 h" in refused(*both)


def test_a_stage_is_looked_at_before_its_first_cell(tmp_path):
    cells = [Square(1, tmp_path), Square(2, tmp_path, bytes_needed=1e18)]
    with pytest.raises(InputError, match="memory"):
        engine.run(TOY, asked(*cells))
    assert not list(tmp_path.iterdir())
