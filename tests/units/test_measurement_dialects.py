"""Output of benchmarks as versions print it and people keep it: one table a reader, each row a file
and what must come of it. The files are made here, with the shape of those named beside them."""

import json
import math

import pandas as pd
import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.calibrate.alike import note_disagreement
from simshuffle.extensions.calibration.calibrate.files import read_files
from simshuffle.extensions.calibration.calibrate.findings import Findings
from simshuffle.extensions.calibration.calibrate.flags import parse_flags, parse_nbytes
from simshuffle.extensions.calibration.calibrate.readers import read_rows
from tests.calibrated import calibrate
from tests.units.test_calibrate import DATA
from tests.units.test_fabric_dialects import TAGS

READ = "cluster.parallel_file_system.read_bandwidth"
OPENS = "cluster.parallel_file_system.open_rate"
MIB = 2**20
DIALECTS = DATA.parent / "dialects"


def reading(text, tmp_path, name="file.txt", **given):
    """What a text gives as a file: rows and notes."""
    path = tmp_path / name
    path.write_text(text)
    (source,) = read_files([path], **given)
    return read_rows(source)


def refusal(text, tmp_path, **given):
    """The one problem of a text."""
    with pytest.raises(InputError) as caught:
        reading(text, tmp_path, **given)
    (problem,) = caught.value.problems
    assert problem.remedy
    return problem


def values(texts, tmp_path, **options):
    """The parameters by key, and the notes, of the fit to several texts."""
    paths = []
    for number, text in enumerate(texts, 1):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text(text)
    result = calibrate(paths, **options)
    return {p.key: p.value for p in result.parameters}, "\n".join(result.notes)


@pytest.mark.parametrize("label", TAGS)
@pytest.mark.parametrize(
    "name", ["nccl-2-hosts.txt", "osu-alltoall.txt", "ior-4-hosts.txt", "mdtest-32-tasks.txt"]
)
def test_labels_of_lines_do_not_matter(name, label, tmp_path):
    text = (DATA / name).read_text()
    labelled = "\n".join(TAGS[label](line) for line in text.split("\n"))
    rows = [reading(each, tmp_path, ranks=8, hosts=8).rows for each in (text, labelled)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_encodings_of_other_systems_do_not_matter(encoding, tmp_path):
    text = (DATA / "ior-4-hosts.txt").read_text()
    path = tmp_path / "ior.txt"
    path.write_bytes(text.encode(encoding))
    (source,) = read_files([path])
    assert len(read_rows(source).rows) == 6


# ---------------------------------------------------------------------------------------------- IOR


def ior(
    command="ior -t 1m -b 16m -s 16 -F",
    order="no tasks offsets",
    nodes=1,
    tasks=32,
    write=900.0,
    read=54000.0,
    **options,
):
    """The output of IOR 3.3 to 4.1; ``write`` and ``read`` in MiB/s, None for none."""
    named = {
        "api": "POSIX",
        "test filename": "/pfs/t",
        "access": "file-per-process",
        "type": "independent",
        "ordering in a file": "sequential",
        "ordering inter file": order,
        "nodes": nodes,
        "tasks": tasks,
        "clients per node": tasks // nodes,
        "xfersize": "1 MiB",
    } | {name.replace("_", " "): value for name, value in options.items()}
    lines = ["IOR-4.0.0: MPI Coordinated Test of Parallel I/O"]
    lines += [f"Command line        : {command}"] if command else []
    lines += ["", "Options: ", *(f"{name:19} : {value}" for name, value in named.items()), ""]
    lines += ["access    bw(MiB/s)  IOPS  Latency(s)  block(KiB) xfer(KiB)  total(s)   iter"]
    for operation, rate in (("write", write), ("read", read)):
        if rate is not None:
            lines += [f"{operation}     {rate}  {rate}  0.035  16384  1024.00  9.10   0"]
    return "\n".join(lines) + "\n"


def ior_3_0(order="no tasks offsets", clients="16 (8 per node)"):
    """The output of IOR 2.10 and 3.0."""
    text = (DIALECTS / "ior-3.0.txt").read_text()
    return text.replace("no tasks offsets", order).replace("16 (8 per node)", clients)


def ior_json(tasks=64, nodes=2, read=5000.0, reorder=1, **parameters):
    """What -O summaryFormat=JSON writes; the results of some versions stand below Options."""
    options = {"api": "POSIX", "tasks": tasks, "nodes": nodes, "xfersize": "1 MiB"}
    options["ordering inter file"] = "constant task offset" if reorder else "no tasks offsets"
    results = [{"access": "write", "bwMiB": 900.0}, {"access": "read", "bwMiB": read}]
    chosen = {"filePerProc": 1, "fsync": 0, "reorderTasks": reorder, "taskPerNodeOffset": 1}
    test = {"TestID": 0, "Parameters": chosen | parameters, "Options": options}
    test["Results" if reorder else "Options"] = (
        [results] if reorder else options | {"Results": results}
    )
    return json.dumps({"Version": "4.0.0", "tests": [test], "summary": []})


SUMMARY_ALONE = (DIALECTS / "ior-summary.txt").read_text()
CSV = """\
access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),numTasks,iter
read,54000.0,54000.0,0.1,16384,1024,0.1,0.1,0.1,0.3,64,0
"""
CONSTANT = {"order": "constant task offset", "task_offset": 1}
READ_BACK = {
    # the commonest call of tutorials, as in the documentation of IOR
    "a file for each task": ior(),
    "one shared file": ior("ior -t 1m -b 16m -s 16", access="single-shared-file"),
    "several nodes": ior(nodes=4),
    "no command line": ior(""),
    "-w -r": ior("ior -w -r -F -e -t 1m"),
    "-C on one node": ior("ior -C -F -t 1m", **CONSTANT),
    "-Q that comes round": ior("ior -C -Q 2 -F", nodes=2, order="constant task offset",
                               task_offset=2),
    "-Z on one node": ior("ior -Z -F", order="random task offset", task_offset=1),
    "MPI-IO": ior("ior -a MPIIO", api="MPIIO", access="single-shared-file"),
    "IOR 3.0": ior_3_0(),
    "IOR 3.0, one node": ior_3_0("constant task offsets = 1", "8 (8 per node)"),
    "JSON": ior_json(reorder=0),
    "summary": SUMMARY_ALONE.format(reord=0),
    "in a run of its own": ior("ior -w -k -F", read=None) + ior("ior -r -F", write=None),
}  # fmt: skip
FROM_SERVERS = {
    "-r": ior("ior -r -F -t 1m", write=None),
    "-r, no command line": ior("", write=None),
    "-C": ior("ior -C -F -t 1m", nodes=4, **CONSTANT),
    "-C -Q 1 -e": ior("ior -C -Q 1 -g -e -F", nodes=10, tasks=320, **CONSTANT),
    "-Q": ior("ior -C -Q 3 -F", nodes=4, order="constant task offset", task_offset=3),
    "-Z": ior("ior -Z -F", nodes=4, order="random task offset", task_offset=1),
    "--posix.odirect": ior("ior -w -r -F -t 1m --posix.odirect"),
    "-B": ior("ior -B -F -t 1m"),
    "-O": ior("ior -O useO_DIRECT=1 -F -t 1m"),
    "-M": ior("ior -M 80% -F -t 1m"),
    "DAOS": ior("ior -a DFS -F", api="DFS"),
    "IOR 3.0": ior_3_0("constant task offsets = 1"),
    "IOR 3.0, random": ior_3_0("random task offsets >= 1, seed=0"),
    "JSON": ior_json(read=54000.0),
    "JSON, O_DIRECT": ior_json(nodes=1, read=54000.0, useO_DIRECT=1),
    "summary": SUMMARY_ALONE.format(reord=1),
    "another file": ior("ior -w -F", read=None) + ior("ior -r", write=None, test_filename="/pfs/u"),
}


@pytest.mark.parametrize("name", READ_BACK)
def test_what_hosts_read_of_their_own_writes_is_left_out(name, tmp_path):
    found, notes = values([READ_BACK[name]], tmp_path)
    assert READ not in found
    assert "write bandwidth of the parallel file system" in found
    assert "the page cache of the hosts may have answered" in notes


@pytest.mark.parametrize("name", FROM_SERVERS)
def test_what_servers_gave_is_taken_without_a_word(name, tmp_path):
    found, notes = values([FROM_SERVERS[name]], tmp_path)
    assert found[READ] == pytest.approx(54000 * MIB, rel=1e-9)
    assert "page cache" not in notes


def test_reads_as_slow_as_synced_writes_came_from_the_servers(tmp_path):
    """Memory gives some 10 GB/s a host; what is no faster than writes that ended with an fsync was
    limited as they were."""
    found, notes = values([ior("ior -w -r -F -e", write=900.0, read=1100.0)], tmp_path)
    assert found[READ] == pytest.approx(1100 * MIB)
    assert "these reads count, since they are at most" in notes
    assert READ not in values([ior("ior -F", write=900.0, read=1100.0)], tmp_path)[0]


def test_a_write_without_fsync_says_so(tmp_path):
    (tmp_path / "ior.txt").write_text(ior(nodes=1))
    (tmp_path / "synced.txt").write_text(ior("ior -w -e -F"))
    told = {}
    for name in ("ior.txt", "synced.txt"):
        result = calibrate(tmp_path / name, storage="ssd")
        (write,) = (p for p in result.parameters if p.key == "cluster.ssd.write_bandwidth")
        told[name] = write.note
    assert "wrote without -e" in told["ior.txt"]
    assert "wrote without -e" not in told["synced.txt"]


def test_csv_of_ior_says_tasks_and_transfers_but_no_nodes(tmp_path):
    (row,) = reading(CSV, tmp_path).rows
    assert (row.ranks, row.rate, row.nbytes) == (64, 54000 * MIB, MIB)
    assert math.isnan(row.hosts)


def test_a_summary_alone_is_the_mean_of_its_repetitions(tmp_path):
    rows = reading(SUMMARY_ALONE.format(reord=1), tmp_path).rows
    assert [(row.rate, row.count, row.ranks, row.hosts) for row in rows] == [
        (900 * MIB, 3, 64, 2), (54000 * MIB, 3, 64, 2),
    ]  # fmt: skip
    text = (DATA / "ior-4-hosts.txt").read_text()
    assert {row.count for row in reading(text, tmp_path).rows} == {1}


@pytest.mark.parametrize("before", ["", ior()])
def test_rows_of_a_summary_are_of_the_tests_that_they_number(before, tmp_path):
    """Two tests of one call, below its banner or with the banner cut off. The second has no row of
    a repetition of its writes: its mean stands for them."""
    banner = "IOR-4.0.0: MPI Coordinated Test of Parallel I/O\n" * bool(before)
    head = "access bw(MiB/s) block(KiB) xfer(KiB) iter\n"
    tests = [f"Test {n} started\n{head}read {n + 1}.0 16 1024.0 0\n" for n in range(2)]
    summary = SUMMARY_ALONE.format(reord=0).split("\n")
    of_second = summary[2].replace(" 0 64 32 ", " 1 8 4 ")
    text = "\n".join([*tests, *summary[:2], summary[3], of_second])
    rows = reading(before + banner + text, tmp_path).rows[2 * bool(before) :]
    assert [(row.rate / MIB, row.ranks, row.hosts, row.count) for row in rows] == [
        (1, 64, 2, 1), (2, 8, 2, 1), (900, 8, 2, 3),
    ]  # fmt: skip


def test_without_tasks_ranks_are_asked_for(tmp_path):
    text = "\n".join(line for line in ior().split("\n") if "tasks" not in line.partition(":")[0])
    problem = refusal(text, tmp_path)
    assert "'tasks : N'" in problem.rule and "--ranks" in problem.remedy
    assert {row.ranks for row in reading(text, tmp_path, ranks=32).rows} == {32}


def test_the_last_row_of_ior_may_be_cut(tmp_path):
    text = ior("ior -C", nodes=2, **CONSTANT)
    found = reading(text[: text.rindex("  0.035")], tmp_path)
    assert [row.operation for row in found.rows] == ["write"]
    assert "is cut off" in found.notes[0].text


USES = {
    # of io500: ior-easy-read, ior-rnd4K-easy-read, ior-hard-read
    "random": {"ordering_in_a_file": "random", "xfersize": "4096 bytes"},
    "smaller transfers": {"xfersize": "64 KiB"},
    "one shared file": {"access": "single-shared-file"},
    "ior-hard": {"access": "single-shared-file", "xfersize": "47008 bytes"},
    "collective": {"access": "single-shared-file", "type": "collective", "api": "MPIIO"},
    "larger random transfers": {"ordering_in_a_file": "random", "xfersize": "16 MiB"},
}


@pytest.mark.parametrize("name", USES)
def test_other_uses_of_files_are_left_out_by_name(name, tmp_path):
    """100,000 MiB/s are 104.9 GB/s, whatever another use of files gives beside it."""
    command, hosts = "ior -C -Q 1 -r -e", {"nodes": 10, "tasks": 320, **CONSTANT}
    bulk = ior(command, write=None, read=100000, **hosts)
    other = ior(command, write=None, read=10000, **hosts | USES[name])
    for texts in ([bulk, other], [other, bulk], [bulk + other]):
        found, notes = values(texts, tmp_path)
        assert found[READ] == pytest.approx(104.8576e9)
        assert "were left out, since reads of 1 MiB, sequential, a file for each task" in notes
    assert values([other], tmp_path)[0][READ] == pytest.approx(10.48576e9)


def test_clients_on_fewer_hosts_do_not_lower_the_servers(tmp_path):
    """64 tasks on one host get what its adapter carries, on 8 hosts what the servers give."""
    texts = [
        ior("ior -C -r", write=None, read=read, nodes=nodes, tasks=64, **CONSTANT)
        for nodes, read in ((1, 10000.0), (8, 60000.0))
    ]
    found, notes = values(texts, tmp_path)
    assert found[READ] == pytest.approx(60000 * MIB)
    curve = dict(found["cluster.parallel_file_system.client_bandwidth"])
    assert curve == pytest.approx({1.0: 10000 * MIB, 8.0: 7500 * MIB})
    assert "reads by 64 clients: the fastest runs used 8 hosts" in notes


def test_files_that_measured_the_same_and_differ_are_named(tmp_path):
    texts = [
        ior("ior -C -r", write=None, read=read, nodes=4, tasks=64, **CONSTANT)
        for read in (10000.0, 30000.0)
    ]
    notes = values(texts, tmp_path)[1]
    assert "1.txt, 2.txt: the same read differs by a factor of 3 between these files" in notes


def test_seconds_that_differ_between_files_are_named_as_rates_are():
    """Two files: latencies of 1 and 3 us, and an epoch that is not compared; a third is alike."""
    columns = ["operation", "ranks", "hosts", "nbytes", "algorithm", "source", "seconds", "rate"]
    rows = [
        ("latency", 2, 2, 8, "", "a", 1e-6, None),
        ("latency", 2, 2, 8, "", "b", 3e-6, None),
        ("bandwidth", 2, 2, 8, "", "a", None, 1e9),
        ("bandwidth", 2, 2, 8, "", "c", None, 1.4e9),
        ("iteration", 2, 2, 8, "", "a", 1.0, None),
        ("iteration", 2, 2, 8, "", "b", 9.0, None),
    ]
    findings = Findings()
    note_disagreement(findings, pd.DataFrame(rows, columns=columns).astype({"rate": float}))
    (note,) = findings.notes
    assert note.startswith("a, b: the same latency differs by a factor of 3 between")


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("ior -t 1m -F", {"-t": "1m", "-F": ""}),
        ('./ior "-t=4k" "-C"', {"-t": "4k", "-C": ""}),
        ("ior -O a=1 -O b=2", {"-O": "a=1,b=2"}),
        ("ior --posix.odirect -t 'x", {"--posix.odirect": "", "-t": "'x"}),
    ],
)
def test_flags_of_a_command_line(text, flags):
    assert parse_flags(text) == flags


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("4k", 4096), ("1 MiB", MIB), ("262144 bytes", 262144),
     ("1.5 GiB", 1.5 * 2**30), ("x", None), ("", None)],
)  # fmt: skip
def test_sizes_in_powers_of_1024(text, nbytes):
    assert parse_nbytes(text) == nbytes


# ------------------------------------------------------------------------------------------- mdtest


def mdtest(
    version="1.9.3",
    summary="SUMMARY:",
    row="   File read         : {0} {0} {0} 0.000",
    command="mdtest -E -F -w 3901 -e 3901 -d /pfs/t -n 1000",
):
    """The output of mdtest for 14,000.5 opens a second."""
    row, text = row.format("14000.500"), (DIALECTS / "mdtest.txt").read_text()
    return text.format(version=version, summary=summary, row=row, command=command)


TIMES = """
SUMMARY time: (of 1 iterations)
   Operation                      Max            Min           Mean        Std Dev
   File read         :          4.600          4.600          4.600          0.000
"""
HEADS = {
    "1.8": mdtest("1.8.4"),
    "1.9": mdtest(),
    "3.0": mdtest("3.0.1", "SUMMARY:"),
    "3.2": mdtest("3.2.0", "SUMMARY rate:", "   File read      {0} {0} {0} 0.000"),
    "3.3, times behind": mdtest("3.3.0", "SUMMARY rate:") + TIMES,
    "3.3, times before": TIMES + mdtest("3.3.0", "SUMMARY rate:"),
    "4.0": mdtest("4.0.0", "SUMMARY rate (in ops/sec):"),
    "4.1, of ranks": mdtest("4.1.0", "SUMMARY rate (in ops/sec):",
                            "   File read  220.1 210.2 215.3 {0} {0} {0} 0.000"),
    "cut behind the row": mdtest()[: mdtest().index("   Tree")],
    "size with a unit": mdtest(command="mdtest -E -F -e=3901"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_every_version_of_mdtest_is_read(name, tmp_path):
    (row,) = reading(HEADS[name], tmp_path).rows
    expected = ("file_read", 14000.5, 64, 8, 3901)
    assert (row.operation, row.rate, row.ranks, row.hosts, row.nbytes) == expected
    assert values([HEADS[name]], tmp_path)[0][OPENS] == 14000.5


def test_mdtest_without_a_head_takes_its_other_line_of_tasks_or_ranks(tmp_path):
    text = "\n".join(line for line in mdtest().split("\n") if "launched" not in line)
    assert reading(text, tmp_path).rows[0].ranks == 64
    text = text.replace("64 tasks,", "All tasks,")
    assert "--ranks N" in refusal(text, tmp_path).remedy
    assert reading(text, tmp_path, ranks=16, hosts=2).rows[0].ranks == 16


@pytest.mark.parametrize("files", ["{} tasks, {}000 files", "{} tasks, 1 file"])
def test_a_series_of_mdtest_has_the_tasks_of_each_table(files, tmp_path):
    """With -f 16 -l 64 -s 16 the first tasks alone work, on hosts that the file does not name."""
    head, table = mdtest(command="mdtest -E -F -f 16 -l 64 -s 16 -e 3901").split(
        "64 tasks, 64000 files"
    )
    rates = {16: "8000.000", 32: "14000.500", 48: "14000.400", 64: "14000.300"}
    text = head + "".join(
        files.format(tasks, tasks) + table.replace("14000.500", rate)
        for tasks, rate in rates.items()
    )
    rows = reading(text, tmp_path).rows
    assert [(row.ranks, row.rate) for row in rows] == [(n, float(r)) for n, r in rates.items()]
    assert [math.isnan(row.hosts) for row in rows] == [True, True, True, False]
    assert rows[3].hosts == 8
    headless = text.replace("launched", "started")
    assert [row.ranks for row in reading(headless, tmp_path).rows] == [*rates]


def test_opens_of_files_of_other_sizes_are_left_out_by_name(tmp_path):
    """The smallest files tell the rate of opens; reading of larger ones takes bandwidth too."""
    large = mdtest(command="mdtest -E -F -e 4m").replace("14000.500", "300.000")
    found, notes = values([mdtest(), large], tmp_path)
    assert found[OPENS] == 14000.5
    assert "2.txt (mdtest): file read of files of 4.1943e+06 B" in notes


def test_files_that_a_host_created_and_opened_itself_are_noted(tmp_path):
    told = {}
    for command in ("mdtest -F -e 3901", "mdtest -F -e 3901 -N 1", "mdtest -E -F -e 3901"):
        (tmp_path / "m.txt").write_text(mdtest(command=command))
        (rate,) = (p for p in calibrate(tmp_path / "m.txt").parameters if p.key == OPENS)
        told[command] = rate.note
    assert ["caches" in note for note in told.values()] == [True, False, False]


# --------------------------------------------------------------------------------------- nccl-tests


def nccl(
    ranks=8,
    listed=None,
    factor=None,
    redop="sum",
    inside="0",
    head="#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong",
    test="",
    sizes=(2**20, 2**24, 2**28),
    group=" Group  0",
    hosts=1,
):
    """The output of nccl-tests for a latency of 20 us and 100 GB/s; ``factor`` is the bus bandwidth
    over the bandwidth, by default that of an allreduce."""
    factor = 2 * (ranks - 1) / ranks if factor is None else factor
    lines = ["# nThread 1 nGpus 8 minBytes 1048576 maxBytes 268435456", "#", "# Using devices"]
    for rank in range(ranks) if listed is None else listed:
        host = f"host{rank * hosts // ranks}"
        lines.append(f"#  Rank {rank:2}{group} Pid  {798 + rank} on {host} device  0 [0x0f] H100")
    lines += [f"# Collective test starting: {test}"] if test else []
    lines.append(head)
    for size in sizes:
        time = 20 + size / 100e3
        algbw = size / time / 1e3
        half = f"{time:.2f} {algbw:.2f} {algbw * factor:.2f}"
        root = "-1" if "root" in head else ""
        row = f"{size} {size // 4} float {redop} {root} {half} 0 {half} {inside}"
        lines.append(row)
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 70.0"])


A2A = {"factor": 7 / 8, "redop": "none"}
OLD = (
    "#       size         count    type   redop     time   algbw   busbw  error"
    "     time   algbw   busbw  error"
)


@pytest.mark.parametrize(
    ("listed", "given", "expected"),
    [
        (None, {}, (8, 1)),
        ([7], {"ranks": 8, "hosts": 1}, (8, 1)),  # as in coreweave/nccl-tests, pull request 43
        ([5, 6, 7], {"ranks": 8, "hosts": 2}, (8, 2)),
        ([0, 1, 2, 3], {"ranks": 8, "hosts": 1}, (8, 1)),
        ([0], {"ranks": 8, "hosts": 1}, (8, 1)),
        ([], {"ranks": 8, "hosts": 1}, (8, 1)),
        (None, {"ranks": 64, "hosts": 8}, (8, 1)),  # the whole list counts
    ],
)
def test_ranks_are_those_of_a_whole_list_or_of_the_option(listed, given, expected, tmp_path):
    rows = reading(nccl(listed=listed), tmp_path, **given).rows
    assert {(row.ranks, row.hosts) for row in rows} == {expected}
    assert len(rows) == 6


def test_a_list_with_gaps_says_no_number_of_ranks(tmp_path):
    """Nor do bandwidths of 51 MB/s, of which two digits are too few."""
    rows = reading(nccl(listed=[5, 6, 7], sizes=(2**10,)), tmp_path, ranks=8, hosts=2).rows
    assert {(row.ranks, row.hosts) for row in rows} == {(8, 2)}


@pytest.mark.parametrize(
    ("text", "given", "operation"),
    [
        (nccl(), {}, "all_reduce"),
        (nccl(head=OLD, group=""), {}, "all_reduce"),
        (nccl(**A2A, inside="N/A"), {}, "all_to_all"),
        (nccl(**A2A), {"collective": "alltoall_perf"}, "all_to_all"),
        (nccl(**A2A | {"redop": ""}, head=OLD), {"collective": "alltoall_perf"}, "all_to_all"),
        (nccl(**A2A), {"name": "alltoall_perf-8.log"}, "all_to_all"),
        ("$ mpirun -np 8 ./build/alltoall_perf -b 1M\n" + nccl(**A2A), {}, "all_to_all"),
        (nccl(test="alltoall_perf", **A2A), {"collective": "all_reduce_perf"}, "all_to_all"),
        (nccl(2, redop="none", factor=0.5, inside="N/A"), {}, "all_to_all"),
    ],
)
def test_the_collective_is_known_by_name_or_by_its_bandwidths(text, given, operation, tmp_path):
    rows = reading(text, tmp_path, **given).rows
    assert {row.operation for row in rows} == {operation}
    ranks = {row.ranks for row in rows}.pop()
    largest = max(row.nbytes for row in rows)
    assert largest == 2**28 / (ranks if operation == "all_to_all" else 1)


@pytest.mark.parametrize("bandwidth", ["nan", "-nan", "inf"])
def test_a_bandwidth_that_is_no_finite_number_tells_nothing(bandwidth, tmp_path):
    """The other rows tell the collective and the ranks, whichever row comes first."""
    lines = nccl(listed=[0, 1, 2, 3]).split("\n")
    row = next(index for index, line in enumerate(lines) if line.startswith("1048576 "))
    cells = lines[row].split()
    assert (len(cells), cells[8], cells[12]) == (13, "0", "0")
    cells[6:8] = cells[10:12] = [bandwidth] * 2
    lines[row] = " ".join(cells)
    rows = reading("\n".join(lines), tmp_path, ranks=8).rows
    assert {(row.operation, row.ranks) for row in rows} == {("all_reduce", 8)}
    problem = refusal("\n".join(lines), tmp_path, ranks=6)
    assert "1.75 times the bandwidth, as for 8 ranks" in problem.rule  # 2 x 7/8


def test_times_of_the_first_versions_are_milliseconds(tmp_path):
    """NVIDIA/nccl, README of 1.3: 10,000,000 B in 1.628 are 6.14 GB/s, so the unit is the ms."""
    rows = reading((DIALECTS / "nccl-1.3.txt").read_text(), tmp_path).rows
    assert [row.seconds for row in rows] == pytest.approx([1.628e-3, 1.932e-3])
    assert rows[0].nbytes / rows[0].seconds == pytest.approx(6.14e9, rel=1e-3)


def test_lines_of_others_and_tables_of_others_are_left_out_by_name(tmp_path):
    lines = nccl().split("\n")
    lines.insert(-3, "[host0:1234] 7 more processes have sent help message help-mpi-btl-openib.txt")
    lines.insert(-3, "host0: libibverbs: Warning: no userspace device-specific driver found")
    gather = nccl(test="all_gather_perf", **A2A)
    found = reading("\n".join([*lines, gather]), tmp_path)
    assert len(found.rows) == 6
    told = "\n".join(note.text for note in found.notes)
    assert "2 lines among the rows were left out, such as '[host0:1234]" in told
    assert "the table of all_gather_perf in line" in told


def test_the_last_row_of_nccl_tests_may_be_cut(tmp_path):
    text = nccl().partition("# Out")[0].rstrip()
    found = reading(text[: text.rindex(" 0 ")], tmp_path)
    assert len(found.rows) == 4
    assert "is cut off" in found.notes[0].text


# ---------------------------------------------------------------------------------------------- OSU

LATENCIES = (
    "1                       1.30\n2                       1.31\n1024                    1.90\n"
)
OSU = {
    "3.1": "# OSU MPI Latency Test v3.1.1\n# Size            Latency (us)\n" + LATENCIES,
    "5.9 on GPUs": "# OSU MPI-CUDA Latency Test v5.9\n# Send Buffer on DEVICE (D) and Receive"
    " Buffer on DEVICE (D)\n# Size          Latency (us)\n" + LATENCIES,
    "7.4": "# OSU MPI Latency Test v7.4\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n"
    + LATENCIES,
    "other tables": "# OSU MPI Bi-Directional Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n"
    "1   3.0\n\n# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n" + LATENCIES,
    "warnings": "# OSU MPI Latency Test v5.9\n# Size          Latency (us)\n"
    "[node1:17] Warning: no hwloc\n" + LATENCIES,
    "cut": "# OSU MPI Latency Test v5.9\n# Size          Latency (us)\n" + LATENCIES + "2048",
}  # fmt: skip


@pytest.mark.parametrize("name", OSU)
def test_every_version_of_osu_is_read(name, tmp_path):
    found = reading(OSU[name], tmp_path)
    assert [row.seconds for row in found.rows] == pytest.approx([1.30e-6, 1.31e-6, 1.90e-6])
    assert bool(found.notes) == (name in {"other tables", "warnings", "cut"})


def test_output_of_fio_names_what_helps(tmp_path):
    assert (
        "does not read output of fio" in refusal('{"fio version" : "fio-3.33"}\n', tmp_path).remedy
    )
