"""The verb loader with --resume-at: what it counts, how long it reads, what it says and refuses."""

import json
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.job.scenario.options import kinds_of
from simshuffle.studies.loader import resume
from simshuffle.studies.loader.resume_tables import RESUMES, is_exact, make_row
from simshuffle.studies.loader.storage import (
    StorageCosts,
    costs_of_scenario,
    costs_of_store,
    parse_store,
)
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, Unit
from simshuffle.workload.resuming import AnyResume
from simshuffle.workload.resuming.law import (
    Batches,
    Refusal,
    ResumedEpoch,
    ResumptionLaw,
    cut_into_batches,
)
from simshuffle.workload.resuming.own import SchedulerResume
from simshuffle.workload.resuming.restart import Restart
from tests.small import small
from tests.toy_orders import handed_out
from tests.units.test_loader import OF_ALL

exactly = pytest.approx
SHAPE = ["--samples", "32", "--shards", "8", "--shard-size", "400 kB", "--batch-size", "2"]
SHAPE += ["--cache", "none", "--epochs", "1", "--processes", "1"]
STORE = ["--store", "s3:latency=100 ms,connection_bandwidth=100 MB/s"]
CRASH = ["study", "loader", "--resume-at", "2", "--from", "2x2", "--to", "2x1", *SHAPE, *STORE]


class InTurn(Order):
    """Every rank an equal part of the samples, in order, in every epoch; whole shards are read."""

    kind: Literal["in_turn"] = "in_turn"
    unit: ClassVar[Unit] = "shard"

    def epoch(self, data, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        return handed_out(np.arange(data.size).reshape(readers.world_size, -1), readers)


class Toy(ResumptionLaw):
    library: ClassVar[str] = "toys 1.0"
    saves: ClassVar[str] = "how many batches were done"

    @property
    def order(self) -> Order:
        return InTurn()


class Backwards(Toy):
    """Ranks turn their parts round, and read and throw away as many batches as were done."""

    kind: Literal["backwards"] = "backwards"

    def resume(self, data, crash, seed) -> ResumedEpoch:
        parts = np.arange(data.size).reshape(crash.readers_after.world_size, -1)[:, ::-1]
        done = crash.step * crash.readers_after.batch_size
        size = crash.readers_after.batch_size
        skipped, rest = (
            cut_into_batches(list(of), size) for of in (parts[:, :done], parts[:, done:])
        )
        return ResumedEpoch(rest, skipped)


class Exact(Toy):
    """Those that are left go on in order."""

    kind: Literal["exact"] = "exact"

    def resume(self, data, crash, seed) -> ResumedEpoch:
        rest = (
            self.epoch(data, crash.readers_before, seed, crash.epoch).after_steps(crash.step).sample
        )
        parts = np.array_split(np.sort(rest), crash.readers_after.world_size)
        return ResumedEpoch(cut_into_batches(list(parts), crash.readers_after.batch_size))


class Strict(Toy):
    """It knows no other ranks."""

    kind: Literal["strict"] = "strict"

    def resume(self, data, crash, seed) -> ResumedEpoch | Refusal:
        return Refusal("ValueError: 4 ranks saved this state.")


LAWS = {"backwards": Backwards, "exact": Exact, "strict": Strict, "restart": Restart}
LAWS |= {"own": SchedulerResume}


REAL = resume.default_laws
"""What there is without toys."""


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    monkeypatch.setattr(resume, "kinds_of", lambda _: LAWS)
    monkeypatch.setattr(resume, "default_laws", lambda shape: {"e": Exact(), "b": Backwards()})
    monkeypatch.chdir(tmp_path)


def resumed(capsys, *more, status=0):
    assert main([*CRASH, *more, "--json"]) == status
    return json.loads(capsys.readouterr().out)["resumes"]


def test_what_is_lost_and_repeated_is_counted(capsys):
    """Ranks have 8 samples each and do the first 4: 0 to 3, 8 to 11, 16 to 19, 24 to 27. Then
    two have 15 to 0 and 31 to 16, throw 15 to 12 and 31 to 28 away, which are lost, and do 11 to 8,
    3 to 0 and as many of the others again."""
    (row,) = resumed(capsys, "--loader", "backwards", status=1)
    assert (row["outcome"], row["continues"]) == ("begins again", "other")
    assert (row["trained"], row["rest"], row["lost"], row["repeated"]) == (16, 24, 8, 16)
    assert (row["twice"], row["twice_whole"], row["never"], row["skipped"]) == (16, 0, 8, 8)
    assert row["says"] == (
        "The epoch begins again: 8 of 32 samples are lost and 16 come more than once; its state"
        " holds how many batches were done. 8 samples are in no epoch of the run. 8 samples are"
        " read and thrown away before the first batch."
    )


def test_an_epoch_later_no_sample_has_never_been_seen(capsys):
    (row,) = resumed(capsys, "--loader", "backwards", "--epochs", "2", status=1)
    assert (row["never"], row["lost"]) == (0, 8)


@pytest.mark.parametrize(("workers", "seconds"), [("1", 0.208), ("1:2", 0.104), ("1:8", 0.104)])
def test_what_is_read_again_takes_as_long_as_the_store_needs(workers, seconds, capsys):
    """Two hosts with cold caches read 8 shards of 400 kB; of the epoch as it was they had read 4 of
    8 already, so 4 are read more, 2 by each rank: 0.1 s and 4 ms each, one after another for one
    worker. Until the first batch each rank reads the shard that it throws away, and one more."""
    (row,) = resumed(capsys, "--loader", "backwards", "--workers", workers, status=1)
    assert (row["files"], row["requests"], row["nbytes"]) == (4, 4, 1_600_000)
    assert (row["read_s"], row["first_batch_s"]) == (exactly(seconds), exactly(seconds))


@pytest.mark.parametrize(("workers", "requests"), [("1", 0), ("1:2", 4), ("2:1", 0)])
def test_without_a_cache_every_worker_reads_for_itself(workers, requests, capsys):
    """An epoch of 4 ranks has read 1 of each rank's 2 shards, and would read the other; or with 2
    workers, whose batches come in turn, each of them. The two that are left have 2 shards each,
    which each of their workers reads. Nothing is read again by a loader that reads less."""
    (row,) = resumed(capsys, "--loader", "exact", "--cache", "0", "--workers", workers)
    assert (row["requests"], row["nbytes"], row["skipped"]) == (requests, 400_000 * requests, 0)
    # the first batch is in one shard
    assert row["first_batch_s"] == exactly(0.104)


def test_a_first_batch_is_one_worker_s(capsys):
    """Its 2 samples of 100 kB come one after another, however many workers there are; all 32 are
    read again but the 16 that were due by 4 connections, 4 for each."""
    loader = "restart:of=distributed_sampler"
    (row,) = resumed(capsys, "--loader", loader, "--workers", "2", status=1)
    assert row["first_batch_s"] == exactly(2 * 0.101)
    assert (row["requests"], row["read_s"]) == (16, exactly(4 * 0.101))


def test_shards_that_are_read_again_are_those_of_ranks_that_are_gone(capsys):
    """Of 4 ranks 2 go on: the other two had 16 of the 32 samples, each of which is a shard."""
    words = ["--loader", "own:strategy=local_shuffle", "--shards", "32", "--shard-size", "100 kB"]
    (row,) = resumed(capsys, *words)
    assert (row["files"], row["requests"], row["nbytes"]) == (16, 16, 1_600_000)


def test_hosts_meet_the_batches_of_all_their_ranks_in_turn():
    rows = Batches(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 0, 1]), np.arange(5))
    assert rows.sort_by_time().sample.tolist() == [0, 1, 3, 2, 4]


def test_the_epoch_before_warms_caches(capsys):
    """In the second epoch all is there: whatever is read is read again."""
    (row,) = resumed(capsys, "--loader", "exact", "--epochs", "2", "--epoch", "1")
    assert (row["files"], row["requests"], row["nbytes"]) == (4, 4, 1_600_000)


def test_pairs_of_a_batch_are_those_of_the_broken_epoch(capsys):
    """All epochs are the same, so all pairs meet again; with batches of 4 afterwards too: each has
    two pairs whole. A broken epoch whose rest is in batches of 4 has 8 pairs and 4 x 6, and the
    next all of the 24 and the 8."""
    (row,) = resumed(capsys, "--loader", "exact", "--batch-size", "2:4")
    assert (row["batch_companions"], row["batch_companions_whole"]) == (1.0, 1.0)
    (row,) = resumed(capsys, "--loader", "exact", "--batch-size", "4:2", "--resume-at", "1")
    # 4 batches of 4, all of whose 24 pairs become 8; 8 of 2 stay
    assert row["batch_companions"] == exactly((8 + 8) / (24 + 8))


def test_a_loader_that_goes_on_is_right_and_one_that_refuses_is_not(capsys):
    words = ["--loader", "exact", "--loader", "strict", "--to", "1x4"]
    rows = resumed(capsys, *words, status=1)
    assert [row["change"] for row in rows] == ["2x2 to 2x1"] * 2 + ["2x2 to 1x4"] * 2
    assert [row["outcome"] for row in rows] == ["goes on", "refuses"] * 2
    assert rows[1]["says"] == "It refuses to go on: ValueError: 4 ranks saved this state."
    assert rows[1]["lost"] is None
    assert rows[2]["continues"] == "same"
    assert rows[2]["says"].startswith("Nothing is lost and nothing comes again; its state holds")


def test_the_exit_status_is_of_those_that_are_named(capsys):
    assert main([*CRASH]) == 0
    assert "1 of 2 resumed loaders lose nothing" in capsys.readouterr().out
    assert main([*CRASH, "--loader", "exact"]) == 0
    capsys.readouterr()
    assert main([*CRASH, "--loader", "exact", "--loader", "backwards"]) == 1
    assert (
        "These loaders do not resume as if nothing had happened: backwards."
        in capsys.readouterr().err
    )


def test_to_is_a_format_too(capsys):
    assert main([*CRASH, "--to", "markdown", "--onto", "1x1", "--loader", "exact"]) == 0
    out = capsys.readouterr().out
    assert "| loader | outcome |" in out
    assert "2x2 to 1x1" in out


def test_half_of_the_epoch_is_the_middle(capsys):
    words = ["--loader", "exact", "--samples", "48"]  # 6 batches a rank
    (row,) = resumed(capsys, *words, "--resume-at", "middle")
    assert row["trained"] == 3 * 4 * 2


def test_what_pads_its_epochs_repeats_nothing():
    """The samples that an epoch has twice whatever happens are no fault of the state."""
    hangs = make_row("a", "b", "c", "hangs", 10)
    RESUMES.check(RESUMES.framed([hangs]), "resumes")
    assert not is_exact(hangs)
    row = hangs | {"outcome": "goes on", "lost": 0, "twice": 3, "twice_whole": 3}
    assert is_exact(row)
    assert not is_exact(row | {"twice": 4})
    assert not is_exact(row | {"lost": 1})
    assert not is_exact(row | {"outcome": "refuses"})


def test_a_function_of_python_names_its_argument():
    with pytest.raises(InputError, match=r"from_: must be NODESxGPUS.* example from_=56x4\."):
        simshuffle.loader(resume_at=2, from_="2", progress=False)


def test_an_order_that_does_not_fit_is_a_row_with_its_problem(capsys):
    name = "restart:of=mosaicml_streaming,of.num_canonical_nodes=3"
    (row,) = resumed(capsys, "--loader", name, status=1)
    assert (row["loader"], row["outcome"]) == ("mosaicml py1e, restarted", "does not fit")
    assert "num_canonical_nodes: must be a multiple" in row["says"]
    assert row["lost"] is None


# ---------------------------------------------------------------------------------- seconds


def test_the_slowest_of_ranks_hosts_and_what_they_share_binds():
    """Two hosts of two ranks of 2 workers. Rank 0 has 3 requests on 2 connections: 3 x 0.1 s + 300
    x 1 ms over 2; the others less. All have 6 requests and 600 bytes; host 0 has 4 and 400."""
    readers = Readers(2, 2, 2, 1)
    requests, nbytes = np.array([3.0, 1.0, 1.0, 1.0]), np.array([300.0, 100.0, 100.0, 100.0])

    def seconds(*limits, workers=None):
        return StorageCosts("a", 1, *limits).least_seconds(requests, nbytes, readers, workers)

    assert seconds(0.1, 1e-3, 0, 0, 0, 0) == exactly(0.3)
    # one worker has all of it; a second one has nothing to do for a single request
    assert seconds(0.1, 1e-3, 0, 0, 0, 0, workers=np.ones(4, int)) == exactly(0.6)
    assert seconds(0.1, 1e-3, 0.2, 0, 0, 0) == exactly(1.2)
    assert seconds(0.1, 1e-3, 0, 0.01, 0, 0) == exactly(6.0)
    assert seconds(0.1, 1e-3, 0, 0, 0.5, 0) == exactly(2.0)
    assert seconds(0.1, 1e-3, 0, 0, 0, 0.02) == exactly(8.0)


def test_an_object_store_answers_as_fast_as_in_the_table_of_orders():
    store = parse_store(
        "s3:latency=50 ms,prefixes=2,bandwidth=1 GB/s,retry_share=0.1,retry_delay=1 s"
    )
    for requests, nbytes in ((1e3, 1e8), (1e6, 1e8), (1e3, 1e12)):
        least = max(store.least_seconds(requests, nbytes, 8).values())
        assert costs_of_store(store).least_seconds_evenly(
            requests, nbytes, Readers(2, 2, 2, 1)
        ) == exactly(least)


def test_what_a_scenario_reads_from_is_what_takes_time():
    """Its SSDs: 1 GB/s and 1000 reads a second of each host; or its file system: 10 files a second
    and 2 GB/s of which half is taken, and 0.5 GB/s for each of two hosts."""
    readers = Readers(2, 1, 4, 1)
    keys = {
        "world_size": 2,
        "cluster__ssd__read_bandwidth": "1 GB/s",
        "cluster__ssd__iops": "1000/s",
        "cluster__ssd__latency": "0 s",
        "cluster__parallel_file_system": {
            "read_bandwidth": "2 GB/s",
            "open_rate": "20/s",
            "latency": "0 s",
            "background_load": 0.5,
            "client_bandwidth": "0.5 GB/s",
        },
    }
    ssd = costs_of_scenario(small(**keys), 2)
    assert ssd.least_seconds_evenly(10, 4e9, readers) == exactly(2.0)
    assert ssd.least_seconds_evenly(6000, 1e9, readers) == exactly(3.0)
    pfs = costs_of_scenario(small(**keys, workload__exchange="global_shuffle:source=pfs"), 2)
    assert pfs.least_seconds_evenly(50, 1e9, readers) == exactly(5.0)
    assert pfs.least_seconds_evenly(10, 4e9, readers) == exactly(4.0)
    uneven = pfs.least_seconds(np.zeros(2), np.array([3e9, 1e9]), readers)
    assert uneven == exactly(6.0)  # the client of the host that reads most


def test_threads_of_a_worker_share_its_cable_however_few_requests_there_are():
    """A cable of 1 GB/s, and 1 ms to open a file. One request of 80 MB has the cable to itself:
    1 + 80 ms. 4 requests of 20 MB are in flight by the 2 x 8 threads at once, over the cables of
    two workers: 1 + 40 ms. 32 requests are two on each thread: 2 + 40 ms."""
    scenario = small(
        world_size=1,
        cluster__topology__link_bandwidth="1 GB/s",
        cluster__parallel_file_system__read_bandwidth="1 TB/s",
        cluster__parallel_file_system__open_rate="1 M/s",
        cluster__parallel_file_system__latency="1 ms",
        workload__exchange="global_shuffle:source=pfs",
        workload__loader={"workers": 2, "prefetch": 4, "threads": 8},
    )
    costs = replace(costs_of_scenario(scenario, 1), host_byte_s=0.0)  # the host has HCAs enough
    seconds = [
        costs.least_seconds_evenly(requests, 80e6, Readers(1, 1, 2, 1)) for requests in (1, 4, 32)
    ]
    assert seconds == exactly([0.081, 0.041, 0.042])
    alone = costs.least_seconds(np.array([4.0]), np.array([80e6]), Readers(1, 1, 2, 1), np.ones(1))
    assert alone == exactly(0.081)  # a worker that is at work alone has one cable


def test_a_scenario_says_who_reads_and_from_what():
    """A client has less bandwidth where there are more of them."""
    curve = {"points": {1: "1 GB/s", 2: "0.5 GB/s"}}
    keys = {"cluster__parallel_file_system__client_bandwidth": curve, "world_size": 4}
    scenario = small(workload__exchange="global_shuffle:source=pfs", **keys)
    hosts = ["1x2", "2x2", "1x2"]
    result = simshuffle.loader(scenario, resume_at=3, to=hosts, loader=["exact"], progress=False)
    says, asked = result.meta["says"], result.meta["asked"]
    assert (says["samples"], says["batch_size"], says["storage"]) == (800, 10, "file system")
    assert "file system" in str(result)
    assert [of["host_byte_s"] for of in asked["storages"]] == [exactly(1e-9), exactly(2e-9)]


def test_a_store_beside_a_scenario_is_refused():
    """What is read again comes from the storage of the scenario, so that the store says nothing."""
    scenario = small(workload__exchange="global_shuffle:source=pfs")
    with pytest.raises(InputError, match="store: has no effect with --resume-at and a scenario"):
        simshuffle.loader(scenario, resume_at=3, store="s3:latency=9 s", progress=False)


def test_caches_have_room_for_what_fewer_nodes_read():
    """A quarter more than 3.2 MB over the one node."""
    asked = {"samples": 32, "shards": 8, "batch_size": 2, "loader": ["exact"]}
    result = simshuffle.loader(resume_at=1, from_="2x2", to=["1x2"], progress=False, **asked)
    assert result.meta["asked"]["shape"]["cache_nbytes"] == 4_000_000


def test_every_registered_law_is_looked_at():
    assert {law.kind for law in REAL(OF_ALL).values()} == set(kinds_of(AnyResume))
