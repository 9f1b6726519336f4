# Made from the options of the studies: `make reference` renews it.
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simshuffle.api import compare as compare
from simshuffle.api import read as read
from simshuffle.api import run as run
from simshuffle.errors import ScenarioError as ScenarioError
from simshuffle.errors import SimshuffleError as SimshuffleError
from simshuffle.job.scenario.scenario import Scenario as Scenario
from simshuffle.job.scenario.scenario import load_scenario as load_scenario
from simshuffle.job.sim.simpy_network import SimpyNetwork as SimpyNetwork
from simshuffle.study.study import Result as Result

from simshuffle.extensions.doctor.api import diagnose as diagnose

__version__: str

def accuracy(
    scenario: Scenario | str | Path,
    *,
    exact: bool = False,
    model: str | None = None,
    norm: str | None = None,
    momentum: float = 0.1,
    world_size: Sequence[int] = ...,
    screening: str | Path | None = None,
    shards: str = "random",
    epochs: int = 90,
    tolerance: float = 0.5,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Say what a shuffle costs in accuracy, and what helps.

    Against global shuffle, with each rank's own batch-norm statistics, before anything
    is trained. The law holds for shards drawn at random.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        exact: Simulate all that the answer rests on, however long that takes.
        model: The network whose sensitivity counts. Default: the network of the scenario.
        norm: Norm of the network: batch, group, layer or none. Default: the known norm of the
            network; if it is not known, batch, and the answer says so.
        momentum: Momentum of running statistics: the share of each batch, as in PyTorch.
        world_size: Ranks. Default: those of the scenario's runs.
        screening: File that simshuffle.train.screen wrote for your own network (JSON).
        shards: How samples are divided among ranks: random or sorted. The law holds for random
            shards.
        epochs: Epochs of the training.
        tolerance: Points of accuracy that may be lost.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def calibrate(
    files: Sequence[Path],
    *,
    kind: str | None = None,
    fit_up_to: int | None = None,
    epochs: str = "steady",
    model: Sequence[str] = ...,
    accelerator: str | None = None,
    gpus_per_host: int = 4,
    ranks: int | None = None,
    hosts: int | None = None,
    collective: str | None = None,
    storage: str = "pfs",
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    progress: bool = True,
) -> Result:
    """Fit the parameters of a scenario to measurements.

    Latencies, bandwidths, rates, compute times and jitter, as a fragment that a
    scenario includes.

    Args:
        files: Output of nccl-tests, OSU, PICO, CRAB, IOR or mdtest, or an epoch log (CSV).
        kind: Kind of the files: nccl-tests, nccl-json, osu, ior, mdtest, epochs, pico, pico-raw
            or crab.
        fit_up_to: Fit measurements of at most RANKS ranks; predict the others.
        epochs: Epoch log: steady (from the second on) or all.
        model: Epoch log: the catalog's entry for a model.
        accelerator: Epoch log: accelerator, the key of the step times.
        gpus_per_host: GPUs of a host, for an epoch log without a column hosts.
        ranks: Ranks, for files that do not state them (OSU, CRAB, a cut list of devices).
        hosts: Hosts, for files that do not state them.
        collective: Collective that nccl-tests ran, for files that do not name it: all_reduce or
            all_to_all.
        storage: What IOR and mdtest measured: pfs or ssd.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def congestion(
    scenario: Scenario | str | Path,
    *,
    exact: bool = False,
    pattern: Sequence[str] = ...,
    network: Sequence[str] = ...,
    routing: Sequence[str] = ...,
    seeds: int = 5,
    packet_seeds: int = 3,
    packets: int = 2000000,
    jitter: float = 0.1,
    wire_only: bool = False,
    world_size: Sequence[int] = ...,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Compare all-to-all with pairwise exchange on the same bytes.

    Answers at each number of ranks of SCENARIO; with -v also what decides, and every
    verdict.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        exact: Simulate all that the answer rests on, however long that takes.
        pattern: A pattern. Default: all.
        network: analytic, fluid or packet. Default: fluid and packet.
        routing: A routing, such as ecmp:queue_pairs=4. Default: the scenario's.
        seeds: Seeds for analytic and fluid.
        packet_seeds: Seeds for packet, the first of --seeds.
        packets: Most packets in one run of packet; the rest is left out.
        jitter: If packet runs and all sizes are equal, vary them by up to this share.
        wire_only: Leave out the cost of messages: host time, trips, barriers' own messages.
        world_size: Number of ranks. Default: the sweep's, or the scenario's.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def train_study(
    study: str,
    *,
    device: str = "auto",
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Train every run of a study on emulated ranks.

    Writes tables, a report and figures. A stopped study goes on when called again.

    Args:
        study: A study file, or a name below studies/.
        device: Device that trains: auto (a GPU if there is one), cpu, cuda, or cuda:N.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def loader(
    scenario: Scenario | str | Path | None = None,
    *,
    tune: bool = False,
    prefetch_factor: Sequence[int] = ...,
    threads: Sequence[int] = ...,
    resume_at: int | str | None = None,
    epoch: int | None = None,
    from_: str | None = None,
    to: Sequence[str] = ...,
    loader: Sequence[str] = ...,
    check: str | Path | None = None,
    order: Sequence[str] = ...,
    dataset: str | None = None,
    samples: int | None = None,
    shards: int | None = None,
    samples_per_shard: int | None = None,
    shard_size: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    workers: int | str | None = None,
    batch_size: int | str | None = None,
    cache: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    classes: int = 10,
    unit: str = "shard",
    block: int = 1,
    store: str = "s3",
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Count what data loaders fetch and lose, or the workers they need.

    How well the orders of libraries mix, or one that was recorded of yours; with --tune
    what workers and prefetch bring in a scenario, and the smallest setting that stalls
    nothing; with --resume-at what loaders lose, repeat and mix that are killed within
    an epoch and go on with other ranks or workers: the exit status is 1 where one that
    is named does.

    Args:
        scenario: A scenario file, or a name below scenarios/. It sets samples, nodes, ranks,
            workers and batch where no option does.
        tune: Say how many workers and how much prefetch the scenario needs.
        prefetch_factor: Batches ahead for each worker, with --tune. Default: 1, 2, 4.
        threads: Threads of a worker, with --tune. Default: the scenario's.
        resume_at: Break an epoch off after this many iterations, and resume from the loaders'
            states.
        epoch: The epoch that is broken off, from 0. Default: 0.
        from_: Readers before the break, with --resume-at. Default: --nodes x --gpus.
        to: Readers after the break, with --resume-at. Default: unchanged. Or a format in which
            standard output has the tables and nothing else: latex (booktabs) or markdown.
        loader: A loader that has a state, with --resume-at. Default: all.
        check: Look at this recorded order instead: CSV or Parquet with the columns epoch, rank,
            worker, position and sample.
        order: An order. Default: all.
        dataset: A data set of the catalog, for samples and their size.
        samples: Samples. Default: 16384, or as many as the data set or the file of --check has.
        shards: Files. Default: 64.
        samples_per_shard: Samples of a file, in place of --shards.
        shard_size: Bytes of a file, such as '64 MB'. Default: 100 kB a sample.
        nodes: Nodes. Default: 4; with --check: 1.
        gpus: Ranks of a node. Default: 4; with --check: as in the file.
        workers: Workers of a rank; with --resume-at before:after. Default: 2; with --check: as
            in the file; with --tune: all.
        batch_size: Samples of a rank's batch; with --resume-at before:after. Default: 16.
        cache: Cache of a node for fetched bytes, such as '10 GB'; none for no limit; 0 for no
            cache. Default: 1.25 times the bytes that a node reads in an epoch.
        epochs: Epochs. Default: 3; with --check: as in the file.
        seed: Seed of the orders.
        classes: Number of labels; samples are sorted by label.
        unit: What the loader of --check fetches at once: sample, block or shard.
        block: Samples of a block, with --unit.
        store: Object store whose seconds and price are computed: Amazon S3, or with other
            values, such as 's3:latency=50 ms,prefixes=10,price_per_gigabyte=0.09'.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def ablate(
    scenario: Scenario | str | Path,
    *,
    start: str = "importance_exchange:schedule=authors",
    end: str = "importance_pair:schedule=authors",
    also: Sequence[tuple[str, Any]] = ...,
    alone: Sequence[tuple[str, Any]] = ...,
    seeds: int = 3,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Take the difference of two exchanges apart by mechanism.

    Which costs how much of the epoch of SCENARIO.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        start: The exchange to begin with, as in a scenario.
        end: The exchange to end with; at the same exchange_fraction.
        also: A further switch, such as payload=encoded.
        alone: A value to set by itself, once at the start and once at the end.
        seeds: Number of seeds, from the scenario's own on.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def hiding(
    scenario: Scenario | str | Path,
    *,
    exact: bool = False,
    world_size: Sequence[int] = ...,
    variant: Sequence[str] = ...,
    tolerance: float = 0.01,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Find the largest exchange fraction that costs an epoch nothing.

    For each number of ranks, by the schedule of the scenario's own runs first, and what
    ends it.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        exact: Simulate all that the answer rests on, however long that takes.
        world_size: Number of ranks. Default: that of each of the scenario's runs.
        variant: Another schedule: authors, pair, encoded or wire. Default: all. The scenario's
            own is always there.
        tolerance: Share by which the exchange may lengthen the epoch.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def month(
    scenario: Scenario | str | Path,
    *,
    days: float | None = None,
    epochs: int | None = None,
    period: float | None = None,
    seeds: int = 20,
    over: Mapping[str, Sequence[Any]] = ...,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Say where the days of a long training go while hosts fail.

    Failures, checkpoints, restarts, waiting for hosts; the best period of checkpoints
    beside Daly's. Epochs are simulated until they repeat, the failures are drawn.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        days: Days of the training. Default: 30.
        epochs: Train until N epochs are done, in place of --days.
        period: Training between two checkpoints, such as 10min. Default: the scenario's.
        seeds: Number of months to draw.
        over: Values of a key; of several keys, every value with every one.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def oracle(
    scenario: Scenario | str | Path,
    *,
    strategies: Sequence[str] = ...,
    world_sizes: Sequence[int] = ...,
    budget_memory: str | None = None,
    simulate: Sequence[tuple[str, int]] = ...,
    measured: str | Path | None = None,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Find the fastest way to divide training that fits the memory.

    On how many GPUs, from 1 up to all of the machine.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        strategies: Ways to divide training, such as data,data+spatial,pipeline:stages=4.
            Default: all that may work on these numbers of GPUs.
        world_sizes: Numbers of GPUs. Default: powers of two that machine and data set allow,
            the numbers of the scenario's runs, and their divisors.
        budget_memory: Usable memory of a GPU. Default: as in the accelerator's name.
        simulate: Also simulate the step of this point, with all transfers on the cables at
            once.
        measured: Measured epochs to compare with the predictions: CSV with the columns
            strategy, world_size and epoch_s.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def plan_training(
    scenario: Scenario | str | Path,
    *,
    exact: bool = False,
    target_accuracy: str | Path | None = None,
    target: float | None = None,
    epochs: int | None = None,
    prices: Mapping[str, Any] = ...,
    budget: float | None = None,
    strategy: Sequence[str] = ...,
    io_share: float = 0.05,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Say what to do: strategy, file system and cost of a training.

    Which strategies fit the storage, what each costs, the largest Q that stays hidden,
    the smallest file system, and what the choice hangs on.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        exact: Simulate all that the answer rests on, however long that takes.
        target_accuracy: Accuracy by epoch, to count the epochs to a target: a CSV file, or a
            result of train or tta.
        target: With --target-accuracy: accuracy to reach. Default: best of global minus 1
            point.
        epochs: Epochs of the training, without --target-accuracy. Default: 90.
        prices: Price of host-hour, ssd-tb, pfs-gbs, pfs-files. Default: a host-hour costs 1.
        budget: Highest cost of the training.
        strategy: Strategy to consider, as in a scenario. Default: the usual ones.
        io_share: Share of an epoch that I/O may take with the smallest file system.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def sweep(
    scenario: Scenario | str | Path,
    *,
    over: Mapping[str, Sequence[Any]] = ...,
    zip: bool = False,
    seeds: int = 1,
    label: str = "",
    measure: str = "epoch_s",
    interval: bool = False,
    ranges: Mapping[str, tuple[float, float]] = ...,
    measured: str | Path | None = None,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Simulate a scenario over values of its keys, and over seeds.

    One table, means, intervals, and a scaling figure.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        over: Values of a key; of several keys, every value with every one.
        zip: Take the first values of all keys together, then the second ones, ...
        seeds: Seeds of each run, from the scenario's own on.
        label: Names of the runs, with axes in braces: 'Q={exchange_fraction}'.
        measure: What the figure shows: a column of sweep.parquet, maybe divided by iterations
            or world_size, such as allreduce_exposed_s/iterations.
        interval: Add 90 % intervals, what they hang on, and how sure the order of runs is.
        ranges: With --interval: between which values a key lies in 9 of 10 cases. Default: by
            its source.
        measured: CSV of runs that you measured (world_size, strategy, epoch_s, ...), a folder
            of doctor, or an epoch log. They narrow the intervals. Default: the scenario's own.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def sizes(
    scenario: Scenario | str | Path,
    *,
    epoch: int | None = None,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Say what each rank holds, reads and sends in an epoch.

    Quantiles over ranks and a histogram, for each run of the scenario's sweep.
    Simulates nothing.

    Args:
        scenario: A scenario file, or a name below scenarios/.
        epoch: Number of the epoch. Default: the last of the scenario.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def tta(
    study: str | Path,
    scenario: Scenario | str | Path,
    *,
    exact: bool = False,
    scale: str | None = None,
    target: Sequence[float] = ...,
    world_size: int | None = None,
    batch_norm: str | None = None,
    variant: str | None = None,
    statistics: str = "own",
    replayed_seeds: int = 1,
    global_source: Sequence[str] = ...,
    set_study: Mapping[str, Any] = ...,
    set: Mapping[str, Any] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Join accuracy per epoch with simulated time per epoch.

    Of a training and a scenario: what reaches which accuracy when.

    Args:
        study: A result folder of 'simshuffle train', or a study, which is trained first.
        scenario: A scenario file, or a name below scenarios/.
        exact: Simulate all that the answer rests on, however long that takes.
        scale: What to scale where M or N differ: trained, samples or ranks; see docs/tta.md.
        target: Accuracy to reach, such as 0.9. Default: global minus 1 and minus 3 points.
        world_size: Ranks of the training. Default: the M with most strategies.
        batch_norm: Batch norm of the training: per_rank, sync or none.
        variant: Variant of the training, as in its tables.
        statistics: Statistics of the evaluation: own, rank0, pooled or recalibrated.
        replayed_seeds: Seeds of each setting whose plans are simulated.
        global_source: Where global shuffle reads: pfs, ssd or object_store. Default: as the
            scenario, else pfs.
        set_study: Set a value of the study that is trained.
        set: Set a value of the scenario.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """

def validate(
    *,
    only: Sequence[str] = ...,
    folder: str | Path | None = None,
    seal: str | Path | None = None,
    open: str | Path | None = None,
    entry: Sequence[Path] = ...,
    out: str | Path | None = None,
    force: bool = False,
    force_size: bool = False,
    processes: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Result:
    """Predict what was measured on real machines, and print the errors.

    Fitted and predicted rows apart.

    Args:
        only: Validate this set of rows. Default: all sets.
        folder: Folder of CSV files of measured values. Default: the files that come with
            simshuffle.
        seal: Also write the predictions, their intervals, versions, date and digest to this
            file, without measured values. The rows may have no measured value yet.
        open: Compare the predictions that were sealed in this file, in place of new ones, with
            the measured values in the CSV files.
        entry: A CSV file of what another program predicts: by, set, case, quantity, predicted,
            interval_low, interval_high. Its predictions are scored beside simshuffle on the
            same rows.
        out: Result folder; nothing is written without it.
        force: Replace the result that is in the result folder.
        force_size: Compute also what by estimate is too large for this machine.
        processes: Processes at once; the default is one on each core.
        scheduler: Compute on the workers of this Dask scheduler (extra cluster).
        progress: Whether bars show the progress of the study.

    Raises:
        SimshuffleError: The request is not valid, or the study fails.
    """
