"""A tiny request of every kind of study, for the contracts that all of them keep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simshuffle.extensions.calibration.calibrate import study as calibration
from simshuffle.extensions.calibration.calibrate.verb import CalibrationOptions
from simshuffle.extensions.calibration.validation import study as validation
from simshuffle.extensions.calibration.validation.sealed import seal_predictions
from simshuffle.extensions.learning.accuracy import asked as accuracy_asked
from simshuffle.extensions.learning.accuracy import study as accuracy
from simshuffle.extensions.learning.accuracy.verb import AccuracyOptions
from simshuffle.extensions.learning.filtering import study as filtering
from simshuffle.extensions.learning.time_to_accuracy import join
from simshuffle.extensions.learning.time_to_accuracy import study as time_to_accuracy
from simshuffle.extensions.learning.time_to_accuracy.verb import TtaOptions
from simshuffle.extensions.planning import asked as planned
from simshuffle.extensions.planning import study as planning
from simshuffle.extensions.planning.month import study as month
from simshuffle.extensions.planning.verb import PlanOptions
from simshuffle.studies.congestion import study as congestion
from simshuffle.studies.congestion.verb import CongestionOptions
from simshuffle.studies.loader import request, resume, tuning
from simshuffle.studies.loader import study as loader
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.mechanisms import ablation, hiding
from simshuffle.studies.mechanisms.verb import AblationOptions, HidingOptions
from simshuffle.studies.oracle import request as oracle_request
from simshuffle.studies.oracle import study as oracle
from simshuffle.studies.oracle.verb import OracleOptions
from simshuffle.studies.simulation import study as simulation
from simshuffle.studies.simulation import sweep
from simshuffle.studies.simulation.verb import RunOptions, SweepOptions
from simshuffle.studies.sizes import study as sizes
from simshuffle.studies.training import study as training
from simshuffle.study.engine import run
from simshuffle.study.study import Request, Study
from simshuffle.workload.exchange import GlobalShuffle, PartialLocalShuffle
from simshuffle_testbed import study as testbed
from tests import filtered, measured, trained
from tests.small import small
from tests.toy import TOY, Square, asked

Tiny = Callable[[Path], tuple[Study[Any], Request[Any]]]
SIZE = {"workload__dataset__num_samples": 160, "world_size": 4, "epochs": 2}
PARTIAL = "partial_local_shuffle:exchange_fraction=0.3"
EXCHANGES = {"workload.exchange": ["local_shuffle", PARTIAL]}


def _toy(place: Path) -> tuple[Study[Any], Request[Any]]:
    return TOY, asked(Square(2), Square(3), Square(5))


def _simulation(place: Path) -> tuple[Study[Any], Request[Any]]:
    scenario = small(**SIZE, sweep=EXCHANGES)
    return simulation.request(RunOptions(scenario=scenario))


def _simulation_over_seeds(place: Path) -> tuple[Study[Any], Request[Any]]:
    scenario = small(**SIZE, workload__jitter__read=0.2, seed=5)
    swept = scenario.model_copy(update={"sweep": EXCHANGES})
    return simulation.request(RunOptions(scenario=swept, seeds=3))


def _sweep(place: Path) -> tuple[Study[Any], Request[Any]]:
    axes = {"world_size": [2, 4], "workload.exchange": ["local_shuffle", "global_shuffle"]}
    return sweep.STUDY, sweep.request(SweepOptions(scenario=small(**SIZE), over=axes, seeds=2))


def _ablation(place: Path) -> tuple[Study[Any], Request[Any]]:
    start = "partial_local_shuffle:schedule=authors"
    end = f"{start}:barriers=none"
    scenario = small(**SIZE, workload__exchange=PARTIAL)
    alone = (("partner_scope", "host"),)
    options = AblationOptions(scenario=scenario, start=start, end=end, alone=alone, seeds=1)
    return ablation.STUDY, ablation.request(options)


def _hiding(place: Path) -> tuple[Study[Any], Request[Any]]:
    scenario = small(**SIZE, cluster__topology__link_bandwidth="10 MB/s")
    options = HidingOptions(scenario=scenario, world_size=(2, 4), variant=("wire",))
    return hiding.STUDY, hiding.request(options)


def _accuracy(place: Path) -> tuple[Study[Any], Request[Any]]:
    options = AccuracyOptions(scenario=small(**SIZE), world_size=(2, 4))
    return accuracy.STUDY, accuracy_asked.request(options)


def _oracle(place: Path) -> tuple[Study[Any], Request[Any]]:
    options = OracleOptions(
        scenario=small(**SIZE, workload__model="alexnet"),
        strategies=("data", "filter"),
        world_sizes=(1, 4),
        budget_memory="3 GiB",
        simulate=(("data", 4),),
    )
    return oracle.STUDY, oracle_request.request(options, [("data", 4, 9.0)])


def _congestion(place: Path) -> tuple[Study[Any], Request[Any]]:
    scenario = small(**SIZE, workload__exchange=PARTIAL)
    patterns = ("all_to_all", "pairing_random")
    options = CongestionOptions(
        scenario=scenario, pattern=patterns, seeds=2, packet_seeds=1, packets=200
    )
    return congestion.STUDY, congestion.request(options)


def _calibration(place: Path) -> tuple[Study[Any], Request[Any]]:
    """Of several models, so that each has a fragment of its own, and of a curve."""
    place.mkdir(parents=True)
    lines = ["model,gpus,local_batch_size,epoch,iterations,epoch_s"]
    lines += [
        f"{model},{gpus},32,{epoch},100,{20 + gpus + 0.1 * (epoch % 3)}"
        for model in ("vgg16", "alexnet")
        for gpus in (1, 4, 8)
        for epoch in range(1, 5)
    ]
    (place / "log.csv").write_text("\n".join(lines))
    reads = Path(__file__).parent / "data" / "calibrate" / "ior-4-hosts.txt"
    options = CalibrationOptions(files=(place / "log.csv", reads))
    return calibration.STUDY, calibration.request(options)


def _loader(place: Path) -> tuple[Study[Any], Request[Any]]:
    """With one that the shape does not allow."""
    names = ("webdataset:buffer_size=4", "own:shuffle=global", "hugging_face:buffer_size=100")
    options = LoaderOptions(
        order=names, samples=64, shards=8, nodes=2, gpus=2, batch_size=2, epochs=2
    )
    return loader.STUDY, request.request(options)


def _tuning(place: Path) -> tuple[Study[Any], Request[Any]]:
    exchanges = ["local_shuffle", "global_shuffle"]
    scenario = small(**SIZE).model_copy(update={"sweep": {"workload.exchange": exchanges}})
    options = LoaderOptions(scenario=scenario, tune=True, prefetch_factor=(1, 2), threads=(1, 2))
    return tuning.STUDY, tuning.request(options)


def _resume(place: Path) -> tuple[Study[Any], Request[Any]]:
    """With one that the shape does not allow."""
    shape = {"samples": 64, "shards": 8, "batch_size": 2, "epochs": 2, "workers": "2:1"}
    names = ("restart:of=distributed_sampler", "restart:of=webdataset,of.buffer_size=4")
    misfit = "restart:of=mosaicml_streaming,of.num_canonical_nodes=3"
    options = LoaderOptions(
        resume_at="middle", from_="2x2", to=("1x3", "2x4"), loader=(*names, misfit), **shape
    )
    return resume.STUDY, resume.request(options)


def _sizes(place: Path) -> tuple[Study[Any], Request[Any]]:
    return sizes.STUDY, sizes.request(small(**SIZE, workload__exchange=PARTIAL))


def _planning(place: Path) -> tuple[Study[Any], Request[Any]]:
    scenario = small(**SIZE, workload__exchange="local_shuffle")
    named = ("global_shuffle:source=pfs", PARTIAL)
    options = PlanOptions(scenario=scenario, strategy=named, prices={"host-hour": 2.0})
    return planning.STUDY, planned.request(options)


def _month(place: Path) -> tuple[Study[Any], Request[Any]]:
    failures = "exponential:mean_between=5 d,repair.mean=2 h"
    keys = {"workload__checkpoint": {"period": "10 min"}, "recovery": {"detect": "1 min"}}
    scenario = small(**SIZE, **keys, failures=failures)
    over = {"recovery.policy": ["spare", "elastic"]}
    return month.STUDY, month.request(scenario, month.MonthLength(days=2.0, seeds=3), over)


def _validation(place: Path) -> tuple[Study[Any], Request[Any]]:
    place.mkdir(parents=True)
    head = "set,case,quantity,unit,measured,low,high,use,kind,scenario,values,spread,reason,source"
    sizes = "epochs=2;sweep={};workload.dataset.num_samples=256"
    rows = [
        f"mine,{size} ranks,steady epoch,s,1.5,1.4,,predict,run,quickstart,world_size={size}"
        f";{sizes},workload.local_batch_size=8..16,,a page"
        for size in (2, 4)
    ]
    none = "mine,by hand,steady epoch,s,,,,none,run,quickstart,,,a figure without numbers,a page"
    (place / "rows.csv").write_text("\n".join([head, *rows, none, ""]))
    return validation.STUDY, validation.request(folder=place)


def _validation_opened(place: Path) -> tuple[Study[Any], Request[Any]]:
    """The same rows, sealed, and an entry beside them."""
    study, asked = _validation(place)
    seal_predictions(
        file := place / "sealed.json", run(study, asked).tables["validation"], "", replace=False
    )
    entry = place / "entry.txt"  # no CSV file beside the rows
    entry.write_text(
        "by,set,case,quantity,predicted,interval_low,interval_high\n"
        "a sheet,mine,2 ranks,steady epoch,1.2,1,2\n"
    )
    return validation.OPENED, validation.request(folder=place, sealed_file=file, entry=[entry])


def _training(place: Path) -> tuple[Study[Any], Request[Any]]:
    kinds = {"global": None, "local": 0.0, "partial": 0.3}
    keys = [(kind, world_size, seed) for kind in kinds for world_size in (4, 8) for seed in (0, 1)]
    names = {f"{kind}_M{m}_s{seed}": (kind, m, seed) for kind, m, seed in keys}
    records = {
        name: trained.record(
            0.8 + 0.01 * seed - 0.05 * (kind == "local"),
            plans=trained.recorded() if kind == "partial" else None,
        )
        for name, (kind, _, seed) in names.items()
    }
    descriptions = {
        name: trained.description(kind, world_size, seed, kinds[kind])
        for name, (kind, world_size, seed) in names.items()
    }
    return training.STUDY, trained.request("made", records, descriptions)


def _data_optimised(place: Path) -> tuple[Study[Any], Request[Any]]:
    return filtering.STUDY, filtered.request()


def _time_to_accuracy(place: Path) -> tuple[Study[Any], Request[Any]]:
    exchange = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.4)
    kinds = {"global": GlobalShuffle(kind="global_shuffle"), "partial": exchange}
    runs = {f"{kind}_s{seed}": (kind, seed) for kind in kinds for seed in (0, 1)}
    records = {}
    for name, (kind, seed) in runs.items():
        plans = trained.recorded(4, 40) if kind == "partial" else None
        record = trained.record(0.8 + 0.01 * seed, plans=plans)
        record.description.update(
            num_samples=40, local_batch_size=2, exchange=kinds[kind].model_dump(mode="json")
        )
        records[name] = record
    descriptions = {
        name: trained.description(kind, 4, seed, 0.4 if kind == "partial" else None)
        for name, (kind, seed) in runs.items()
    }
    folder = trained.saved(place / "trained", "made", records, descriptions)
    scenario = small(**SIZE)
    options = TtaOptions(study=folder, scenario=scenario, scale="trained", replayed_seeds=2)
    return time_to_accuracy.STUDY, join.request(options, folder, scenario)


def _testbed(place: Path) -> tuple[Study[Any], Request[Any]]:
    return testbed.STUDY, testbed.request(measured.tiny())


def _simulation_of_jobs(place: Path) -> tuple[Study[Any], Request[Any]]:
    jobs = {"a": {}, "b": {"world_size": 2, "start": "0.1 s"}}
    scenario = small(**SIZE, workload__exchange="global_shuffle:source=pfs", jobs=jobs)
    return simulation.request(RunOptions(scenario=scenario))


TINY: dict[str, Tiny] = {
    make.__name__[1:]: make
    for make in (
        *(_simulation, _simulation_of_jobs, _simulation_over_seeds, _sweep, _toy, _ablation),
        *(_hiding, _accuracy, _oracle, _calibration, _loader, _tuning, _resume),
        *(_congestion, _month, _sizes, _planning, _validation, _validation_opened, _training),
        *(_data_optimised, _time_to_accuracy, _testbed),
    )
}
"""By the kind that ``meta.json`` names."""
