"""A tiny cell of every class, and another value of each of its fields."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import simshuffle
from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.study import CalibrationCell
from simshuffle.extensions.calibration.calibrate.verb import CalibrationOptions
from simshuffle.extensions.calibration.validation.predict import Task, TaskCell
from simshuffle.extensions.learning.accuracy.cells import EffectiveSamplesCell, StatisticsSumCell
from simshuffle.extensions.learning.filtering.cells import ExtractionCell, RetrainingCell
from simshuffle.extensions.learning.filtering.record import Extractor, Projection
from simshuffle.extensions.learning.time_to_accuracy.replay import ReplayCell
from simshuffle.extensions.planning.cells import FileSystemCell, IoShareCell
from simshuffle.extensions.planning.flips import FlipCell
from simshuffle.extensions.planning.hidden import HiddenExchangeCell
from simshuffle.extensions.planning.month.cell import MonthCell
from simshuffle.extensions.planning.month.epoch import EpochCell, epoch_document
from simshuffle.extensions.planning.months import MonthsCell
from simshuffle.fabric.network import Fluid, Packet
from simshuffle.job.plan.jobs import place_jobs
from simshuffle.job.sim.cell import RunCell
from simshuffle.job.sim.jobs_cell import JobsCell
from simshuffle.studies.congestion.cell import RankPlacement, SentCell, TrafficCell
from simshuffle.studies.congestion.patterns import Variant
from simshuffle.studies.congestion.traffic import samples_to_send
from simshuffle.studies.loader.cell import LoaderCell
from simshuffle.studies.loader.resume_cell import ResumeCell
from simshuffle.studies.loader.shape import DataSetShape
from simshuffle.studies.loader.storage import StorageCosts
from simshuffle.studies.loader.tuning import TuningCell
from simshuffle.studies.mechanisms.search import SearchCell
from simshuffle.studies.mechanisms.variants import WarmCell, prepare_scenario
from simshuffle.studies.oracle.cell import StepCell, SweepCell
from simshuffle.studies.sizes.study import SizesCell
from simshuffle.study.cell import PlainCell
from simshuffle.study.options import Options
from simshuffle.train import cell as train
from simshuffle.train.data import Digits
from simshuffle.train.distributed.study import RankCell
from simshuffle.train.models import Mlp
from simshuffle.train.run import Run
from simshuffle.workload.orders.buffers import HuggingFace
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming import Restart
from tests.small import uneven

SIZE = {"workload__dataset__num_samples": 62, "world_size": 6, "epochs": 2}
SIZE |= {"workload__local_batch_size": 4}
PARTIAL = "partial_local_shuffle:exchange_fraction=0.3"
PFS = "global_shuffle:source=pfs"
EPOCH = {"first_s": 9.0, "staging_s": 2.0, "steady_s": 7.0, "reads_s": 1.0, "iterations": 3}
EPOCH |= {"epochs": 3}
LATER = EPOCH | {"steady_s": 5.0}
NAMES = {"label": "else", "name": "else"}
"""Fields that decide nothing, unless an example varies them, and another value."""
KEPT = {"with_tables", "timeline"}
"""Fields that decide which tables are kept, for which a store looks beside the key."""


class Example:
    """A cell, and other values of its fields: by their dotted names, a double underscore for a dot,
    or by several names that go together. Of each of them another outcome comes, but of those that
    are ``unseen`` where a cell is so small. ``idle`` fields decide nothing. A cell that takes long
    is not run."""

    def __init__(
        self,
        cell: Any,
        together: Mapping[str, Any] | None = None,
        *,
        idle: str = "",
        unseen: str = "",
        runs: bool = True,
        **others: Any,
    ) -> None:
        self.cell, self.unseen, self.runs = cell, set(unseen.split()), runs
        named = {name.replace("__", "."): value for name, value in others.items()}
        self.others = named | dict(together or {})
        self.listed = {name for names in self.others for name in names.split()}
        self.idle = {*idle.split(), *NAMES, *KEPT} & set(leaves(cell)) - self.listed


def kinds_of_cells() -> set[type]:
    """All classes of cells of the package, that are run."""
    root = Path(simshuffle.__file__).parent
    for path in root.rglob("*.py"):
        if re.search(r"^class \w+\(.*Cell\w*\)", path.read_text(encoding="utf-8"), re.MULTILINE):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            importlib.import_module(name)
    found, waiting = set(), [PlainCell]
    while waiting:
        kind = waiting.pop()
        found.add(kind)
        waiting += kind.__subclasses__()
    return {
        kind
        for kind in found
        if hasattr(kind, "run") and hasattr(kind, "key") and not kind.__dict__.get("_is_protocol")
        if kind.__module__.startswith("simshuffle.")
    }


def leaves(record: Any, before: str = "") -> Iterator[str]:
    """Names of all fields, of records within it too."""
    if isinstance(record, DataSetShape):
        yield from (before + name for name in DataSetShape.model_fields)
        return
    for each in dataclasses.fields(record):
        value = getattr(record, each.name)
        parts = dataclasses.is_dataclass(value) and not isinstance(value, Options)
        if parts or isinstance(value, DataSetShape):
            yield from leaves(value, f"{before}{each.name}.")
        else:
            yield before + each.name


def changed(record: Any, names: str, values: Any) -> Any:
    """The record with other values in the fields of these names."""
    listed = names.split()
    for name, value in zip(listed, values if len(listed) > 1 else [values], strict=True):
        record = _with(record, name.split("."), value)
    return record


def _with(record: Any, names: list[str], value: Any) -> Any:
    if len(names) > 1:
        value = _with(getattr(record, names[0]), names[1:], value)
    if isinstance(record, DataSetShape):
        return record.model_copy(update={names[0]: value})
    return dataclasses.replace(record, **{names[0]: value})


def document(**values: Any) -> Mapping[str, Any]:
    return uneven(**SIZE | values).to_dict()


def failing(**values: Any) -> Mapping[str, Any]:
    return document(
        failures="exponential:mean_between=1 d,repair.mean=2 h",
        workload__checkpoint={"period": "10 min"},
        recovery={"detect": "1 min"},
        **values,
    )


def exchanging(**values: Any) -> Mapping[str, Any]:
    return prepare_scenario(uneven(**SIZE | {"workload__exchange": PARTIAL} | values)).to_dict()


def with_jobs(seed: int) -> Mapping[str, Any]:
    jobs = {"a": {}, "b": {"world_size": 2, "start": "0.1 s"}}
    return place_jobs(uneven(**SIZE, workload__exchange=PFS, jobs=jobs, seed=seed)).to_dict()


def replayed(**values: Any) -> Mapping[str, Any]:
    order = "order=hugging_face,order.buffer_size=20,samples_per_shard=9"
    return document(workload__exchange=f"loader_shuffle:{order}", epochs=3, **values)


def from_pfs(seed: int = 0) -> Mapping[str, Any]:
    return document(workload__exchange=PFS, time_tolerance=0.3, seed=seed)


def opening(seed: int = 0) -> Mapping[str, Any]:
    return document(cluster__parallel_file_system__open_rate="1000 /s", seed=seed)


def layered(size: int = 4) -> Mapping[str, Any]:
    return document(workload__model="alexnet", workload__local_batch_size=size)


def offers(epochs: int) -> list[dict[str, Any]]:
    """Two strategies of a plan, the latter of so many epochs."""
    plain = {"kept_nbytes": 9e6, "hosts": 3, "goodput": 0.6, "seconds": None, "epoch_s": None}
    of_pfs = {"name": "pfs", "exchange": PFS, "epochs": 9, "mixing": 1.0, "reads_pfs": True}
    local = {"name": "local", "exchange": "local_shuffle", "epochs": epochs, "mixing": 0.0}
    return [plain | of_pfs, plain | local | {"reads_pfs": False}]


def log(first: float) -> tuple[MeasurementFile]:
    """A log of epochs."""
    head = "model,gpus,local_batch_size,epoch,iterations,epoch_s"
    rows = [f"vgg16,{m},32,{e},100,{first + m + 0.1 * e}" for m in (1, 4, 8) for e in (1, 2, 3)]
    return (MeasurementFile(Path("log.csv"), "\n".join([head, *rows])),)


def fitted(**values: Any) -> CalibrationOptions:
    return CalibrationOptions(files=(Path("log.csv"),), **values)


def congested(kind: type, *rest: Any, **others: Any) -> Example:
    """A cell of what is sent."""
    keys = {"world_size": 6, "workload__exchange": PARTIAL, "workload__dataset__num_samples": 1200}
    scenarios = [uneven(**keys, seed=seed) for seed in (0, 1)]
    place, other = map(RankPlacement.of_scenario, scenarios)
    sent = samples_to_send(scenarios[0])
    together = {
        "place.digest place.scenario samples.scenario": (other.digest, *scenarios[1:] * 2),
        "samples.count samples.iteration": (sent.count - 1, sent.iteration[:-1]),
    }
    cell = kind(place, sent, *rest)
    return Example(cell, together, samples__share=0.5, samples__jitter=0.6, **others)


SHAPE = DataSetShape(
    samples=70, samples_per_shard=9, shard_nbytes=900, nodes=2, gpus=2, workers=2, batch_size=3,
    cache_nbytes=400, epochs=3,
)  # fmt: skip
SHAPES = {
    "samples": 75, "samples_per_shard": 10, "shard_nbytes": 800, "nodes": 3, "gpus": 3,
    "workers": 3, "batch_size": 4, "cache_nbytes": None, "epochs": 4, "seed": 1, "classes": 7,
}  # fmt: skip
SHAPES = {f"shape__{name}": value for name, value in SHAPES.items()}
ORDERS = [HuggingFace(kind="hugging_face", buffer_size=size) for size in (9, 30)]
LAWS = [Restart(kind="restart", of=order) for order in ORDERS]
STORAGE = StorageCosts("pfs", 2, 1e-3, 1e-9, 1e-4, 1e-8, 1e-4, 1e-8)
TASK = "epochs=2;sweep={};workload.dataset.num_samples=256;world_size"


def resumed() -> Example:
    after = {"nodes": 2, "ranks": 2, "workers": 3, "batch_size": 4}
    costs = [each.name for each in dataclasses.fields(StorageCosts) if each.name.endswith("_s")]
    return Example(
        ResumeCell("restarted", "a loader", LAWS[0], SHAPE, Readers(1, 3, 2, 3), 1, None, STORAGE),
        loader="else",
        law=LAWS[1],
        **{name: value for name, value in SHAPES.items() if name != "shape__classes"},
        **{f"new_readers__{name}": value for name, value in after.items()},
        epoch=2,
        step=1,
        storage__threads=3,
        **{f"storage__{name}": 1.0 for name in costs},
        idle="shape.classes storage.name",
        unseen="shape.epochs",
    )


def trained(kind: type, idle: str = "", fields: Any = (), **more: Any) -> Example:
    """A cell of a training, with other values of its ``fields``, which is not run here."""
    plain = {"data": {"kind": "digits"}, "model": {"kind": "mlp"}, "world_size": 4}
    plain |= {"exchange": {"kind": "local_shuffle"}}
    runs = [Run.model_validate(plain | {"seed": seed}) for seed in (0, 1)]
    known = {"samples": 9, "num_samples": 9, "label": "x", "device": "cpu", "training_run": runs[0]}
    names = {each.name for each in dataclasses.fields(kind)}
    cell = kind(**{name: known[name] for name in known if name in names} | dict(fields))
    others = {"training_run": runs[1], "device": "cuda:1"} | more
    return Example(cell, {k: others[k] for k in others if k in names}, idle=idle, runs=False)


def extracted() -> Example:
    first, other = (
        {
            "data": Digits(kind="digits", test_share=0.2 + 0.1 * number),
            "extractor": Extractor(name="mlp", model=Mlp(kind="mlp", width=8 + number)),
            "projection": Projection(pca_components=5 + number),
            "seed": number,
        }
        for number in (0, 1)
    )
    return trained(ExtractionCell, "num_samples", first, **other)


def on_ranks() -> Example:
    emulated = trained(train.TrainingCell, "samples")
    others = {f"emulated.{name}": value for name, value in emulated.others.items()}
    idle = "emulated.samples emulated.label storage torch_device"
    cell = RankCell(emulated.cell)
    return Example(cell, others | {"transport": "allgather"}, idle=idle, runs=False)


EXAMPLES: dict[type, Callable[[], Example]] = {
    RunCell: lambda: Example(RunCell(document(), "", with_tables=False), document=document(seed=3)),
    WarmCell: lambda: Example(WarmCell(exchanging(), ""), document=exchanging(seed=3)),
    JobsCell: lambda: Example(JobsCell(with_jobs(0), "", timeline="none"), document=with_jobs(1)),
    ReplayCell: lambda: Example(
        ReplayCell(replayed(), "", trained_epochs=3), document=replayed(seed=3), trained_epochs=4
    ),
    MonthCell: lambda: Example(
        MonthCell(failing(), EPOCH, "a month", 2.0, None, None, 2),
        {"days epochs": (None, 30)},
        **{"document": failing(seed=3), "epoch": LATER, "days": 3.0, "period": 90.0, "seeds": 3},
    ),
    MonthsCell: lambda: Example(
        MonthsCell(failing(), EPOCH, ""), document=failing(seed=3), epoch=LATER, unseen="epoch"
    ),
    EpochCell: lambda: Example(
        EpochCell(epoch_document(from_pfs()), ""), document=epoch_document(from_pfs(3))
    ),
    FileSystemCell: lambda: Example(
        FileSystemCell(from_pfs(), "all from it", 0.3),
        **{"document": from_pfs(3), "name": "else", "io_share": 0.5, "exact": False},
        unseen="exact",
    ),
    IoShareCell: lambda: Example(IoShareCell(from_pfs(), ""), document=from_pfs(3)),
    HiddenExchangeCell: lambda: Example(
        HiddenExchangeCell(exchanging(), 0.28, 4.0),
        **{"document": exchanging(seed=3), "tolerance": 0.1, "baseline_s": 4.2},
    ),
    SearchCell: lambda: Example(
        SearchCell(exchanging(), "own", 0.28, 4.0),
        **{"document": exchanging(seed=3), "variant": "wire", "tolerance": 0.1, "baseline_s": 4.2},
        **{"baseline_half_width_s": 0.05, "limit_s": 1e-3},
    ),
    FlipCell: lambda: Example(
        FlipCell(opening(), offers(9), {"host-hour": 2.0}, 0.01, None, "open rate", "1/s", False),
        **{"document": opening(3), "offers": offers(12), "prices": {"host-hour": 3.0}},
        **{
            "tie_share": 0.2,
            "budget": 1e-9,
            "input_name": "step time",
            "unit": "k/s",
            "exact": True,
        },
        unseen="exact prices",
    ),
    CalibrationCell: lambda: Example(
        CalibrationCell(log(20.0), fitted()), sources=log(30.0), options=fitted(gpus_per_host=2)
    ),
    EffectiveSamplesCell: lambda: Example(
        EffectiveSamplesCell(exchanging(), "", 0.1, 2),
        **{"document": exchanging(world_size=4), "momentum": 0.2, "epochs": 3},
    ),
    StatisticsSumCell: lambda: Example(
        StatisticsSumCell(document(), "", (64, 64)),
        document=document(world_size=4),
        channels=(64, 128),
    ),
    SentCell: lambda: congested(SentCell, 2, "", samples__bytes_set="short", seeds=3),
    TrafficCell: lambda: congested(
        TrafficCell,
        *(Variant("random_permutations", "sample"), Fluid(kind="fluid"), 1, "", False),
        **{"variant__pattern": "linear_shift", "variant__batching": "all"},
        **{"variant__barrier": True, "model": Packet(kind="packet"), "seed": 2},
        **{"wire_only": True, "most_messages": 8},
        idle="samples.bytes_set with_links",
    ),
    LoaderCell: lambda: Example(
        LoaderCell("an order", SHAPE, ORDERS[0]), **SHAPES, label="else", order=ORDERS[1]
    ),
    ResumeCell: resumed,
    TuningCell: lambda: Example(
        TuningCell("a run", document(), {"workers": [1], "factors": [2], "threads": [1]}),
        document=document(seed=3),
        axes={"workers": [1], "factors": [2], "threads": [2]},
    ),
    SizesCell: lambda: Example(SizesCell("", document(), 2), document=document(seed=3), epoch=1),
    SweepCell: lambda: Example(
        SweepCell(layered(), {2: {"data": {"kind": "data"}}}),
        **{"document": layered(6), "points": {4: {"data": {"kind": "data"}}}},
    ),
    StepCell: lambda: Example(
        StepCell(layered(), "filter", {"kind": "filter", "ways": 4}, 4),
        **{"document": layered(6), "strategy": {"kind": "data"}, "world_size": 8},
    ),
    TaskCell: lambda: Example(
        TaskCell(Task("run", "quickstart", f"{TASK}=2")),
        task__kind="oracle",
        task__scenario="checkpoints",
        task__values=f"{TASK}=4",
        idle="task.quantity",
    ),
    train.TrainingCell: lambda: trained(train.TrainingCell, "samples"),
    train.OwnCell: lambda: trained(
        train.OwnCell, "samples custom", {"custom": None, "mark": "a mark"}, mark="else"
    ),
    RankCell: on_ranks,
    ExtractionCell: extracted,
    RetrainingCell: lambda: trained(
        *(RetrainingCell, "num_samples description"),
        {"retained_samples": np.arange(3), "description": {}},
        retained_samples=np.arange(4),
    ),
}
