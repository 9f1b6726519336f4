"""Records of trainings, our own and those of others: what is read is what was recorded."""

import gzip
import json

import pytest

from simshuffle.errors import InputError
from simshuffle.records.reading import RECORD, read
from simshuffle.records.record import Record, framed


def small():
    """A record of two batches of a rank."""
    columns = {"operation": ["wait", "step"] * 2, "start_s": [0.0, 1.0, 3.0, 3.5]}
    columns |= {"seconds": [1.0, 2.0, 0.5, 2.5], "batch": [0, 0, 1, 1]}
    return Record(framed(columns), {"made_by": "simshuffle", "ranks": 1, "notes": []}, "here")


def test_a_record_is_found_in_the_folder_of_doctor_and_by_its_content(tmp_path):
    made = small()
    made.write(tmp_path / RECORD)
    made.write(tmp_path / "kept.json")
    for path in (tmp_path, tmp_path / RECORD, tmp_path / "kept.json"):
        found = read(path)
        assert found.about == made.about
        assert found.rows.equals(made.rows)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "must be a folder of `simshuffle doctor`"),
        (b"hello", "a file that begins b'hello'"),
        (b"PAR1", "must be a record"),
        (b"\x1f\x8bno", "a file that begins b''"),
        (gzip.compress(b"hello"), "a file that begins b'hello'"),
    ],
)
def test_what_is_no_record_is_refused_with_what_is_read(tmp_path, content, why):
    path = tmp_path / "given"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read(path)
    assert why in str(error.value)
    assert str(path) in str(error.value)


def test_a_folder_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="a folder without one"):
        read(tmp_path)


# ------------------------------------------------------------------------------------------ kineto

WAIT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
AUTOGRAD = "autograd::engine::evaluate_function: MmBackward0"


def event(kind, name, start, end, thread=1, **args):
    """An event of a trace, from start to end as us."""
    about = {"name": name, "cat": kind, "ts": start, "dur": end - start, "args": args}
    return {"ph": "s" if kind == "fwdbwd" else "X", "pid": 7, "tid": thread, **about}


def annotation(name, start, end):
    return event("user_annotation", name, start, end)


def operation(name, start, end):
    return event("cpu_op", name, start, end)


def launched(kind, name, asked, start, end, correlation, **args):
    """A kernel or copy, and its launch."""
    launch = event("cuda_runtime", "cudaLaunchKernel", asked, asked + 5, correlation=correlation)
    return [launch, event(kind, name, start, end, 20, correlation=correlation, **args)]


ON_GPU = [
    annotation("ProfilerStep#5", 0, 1000),
    annotation(WAIT, 10, 110),
    *launched("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 115, 120, 140, 1, bytes=4096),
    event("fwdbwd", "fwdbwd", 150, 150),
    operation("aten::mm", 150, 190),
    *launched("kernel", "gemm", 160, 200, 300, 2),
    operation(AUTOGRAD, 300, 500),
    *launched("kernel", "gemm", 320, 330, 530, 3),
    *launched(
        *("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(4096ul)", 400, 450, 700, 4),
        **{"In msg nelems": 1000, "dtype": "Float", "Collective name": "allreduce"},
    ),
    annotation("Optimizer.step#SGD.step", 600, 650),
    *launched("kernel", "multi_tensor", 610, 690, 720, 5),
    annotation("ProfilerStep#6", 1000, 1500),
    annotation(WAIT, 1010, 1310),
    operation("aten::mm", 1320, 1330),
    event("python_function", "train.py(3): main", 0, 2000),
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
]
"""Two steps. The copy takes 20 us, the forward pass 100. That backward is from 330 us, when its
first kernel begins, to 700, when the sum ends; of the 250 us of the sum the backward pass hides
80, and the optimizer's kernel 10."""


def trace(events=ON_GPU, **about):
    known = {"rank": 3, "world_size": 8, "backend": "nccl"}
    return {"schemaVersion": 1, "distributedInfo": known, "traceEvents": events} | about


def written(path, content):
    """A file of a trace, packed if its name says so."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path


def micros(record, rank=None):
    """Of each operation and batch the us that it took."""
    rows = record.rows if rank is None else record.rows[record.rows["rank"] == rank]
    keys = zip(rows["operation"], rows["batch"], strict=True)
    return dict(zip(keys, (rows["seconds"] * 1e6).round(3), strict=True))


TOOK = {("wait", 0): 100, ("step", 0): 890, ("copy", 0): 20, ("forward", 0): 100}
TOOK |= {("backward", 0): 370, ("optimizer", 0): 30, ("allreduce", 0): 160}
TOOK |= {("wait", 1): 300, ("step", 1): 190}


@pytest.mark.parametrize("name", ["t.json", "t.pt.trace.json.gz", "t"])
def test_a_trace_of_a_gpu_tells_what_each_batch_took(tmp_path, name):
    found = read(written(tmp_path / name, trace()))
    assert micros(found) == TOOK
    assert found.about["ranks"] == 8
    assert set(found.rows["rank"]) == {3}
    (copy,) = found.of("copy").itertuples()
    (summed,) = found.of("allreduce").itertuples()
    assert (copy.nbytes, summed.nbytes) == (4096, 4000)
    assert copy.start_s == pytest.approx(110e-6)


def test_where_the_processor_computes_what_no_operation_hides_is_exposed(tmp_path):
    """The sum is from 320 to 800 us. Autograd ends at 500, the sums are copied at 790: 290 us; and
    10 us of autograd only asked for the sum. The next sum is not finished: it ends with its step,
    at 1500, and nothing is computed from 1450 on."""
    ddp = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    of = {"Input Dims": [[10, 5]], "Input type": ["c10::BFloat16"]}
    events = [
        annotation(WAIT, 0, 100),
        annotation("DistributedDataParallel.forward", 110, 200),
        operation(AUTOGRAD, 300, 500),
        operation("c10d::allreduce_", 330, 340),
        event("user_annotation", "gloo:all_reduce", 320, 800, 9, **of),
        operation(ddp, 790, 810),
        annotation("Optimizer.step#Adam.step", 820, 850),
        annotation(WAIT, 1000, 1250),
        operation(AUTOGRAD, 1400, 1450),
        event("user_annotation", "gloo:all_reduce", 1420, 9000, 9, **of, finished=False),
        annotation("Optimizer.step#Adam.step", 1480, 1490),
        annotation(WAIT, 1500, 1510),
    ]
    found = read(written(tmp_path / "t.json", trace(events, deviceProperties=[])))
    assert micros(found) == {
        **{("wait", 0): 100, ("step", 0): 900, ("forward", 0): 90, ("backward", 0): 510},
        **{("optimizer", 0): 30, ("allreduce", 0): 300},
        **{("wait", 1): 250, ("step", 1): 250, ("backward", 1): 50, ("optimizer", 1): 10},
        ("allreduce", 1): 40,
    }
    assert found.about["model"] == {"gradient_nbytes": 100, "buckets": [100]}
    assert found.about["device"] == "cpu"


def test_a_call_of_a_loader_that_has_no_batch_left_ends_an_epoch(tmp_path):
    events = [
        *(annotation(WAIT, 0, 10), operation("aten::mm", 20, 30)),
        *(annotation(WAIT, 40, 41), operation("aten::random_", 42, 43)),
        *(annotation(WAIT, 50, 55), operation("aten::mm", 60, 70)),
        annotation(WAIT, 80, 81),
    ]
    rows = read(written(tmp_path / "t.json", events)).of("wait")
    assert rows[["epoch", "batch"]].to_numpy().tolist() == [[0, 0], [1, 0]]
    assert (rows["seconds"] * 1e6).round(3).tolist() == [10, 5]


def test_without_a_loader_a_step_of_the_profiler_is_a_batch(tmp_path):
    events = [annotation("ProfilerStep#1", 0, 100), annotation("ProfilerStep#2", 100, 250)]
    found = read(written(tmp_path / "t.json", trace(events)))
    assert micros(found) == {("step", 0): 100, ("step", 1): 150}
    assert "waits are not in it" in " ".join(found.about["notes"])


def test_a_folder_of_traces_is_read_on_one_clock_and_a_later_one_goes_on(tmp_path):
    """Rank 0 began 50 us after rank 1; its next trace is of later batches."""
    info = {"distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanoseconds": 10**18}
    later = info | {"baseTimeNanoseconds": 10**18 + 10**9}
    other = info | {"distributedInfo": {"rank": 1, "world_size": 2}}
    moved = [{**each, "ts": each["ts"] + 50} for each in ON_GPU if "ts" in each]
    for name, about in {"a": info, "b": later, "c": other}.items():
        written(tmp_path / f"{name}.json.gz", trace(ON_GPU if name == "c" else moved, **about))
    (tmp_path / "notes.json").write_text("{}")
    found = read(tmp_path)
    assert found.about["ranks"] == 2
    waits = found.of("wait")
    of = waits[waits["rank"] == 0]
    assert of["batch"].tolist() == [0, 1, 2, 3]
    assert (of["start_s"] * 1e6).round(3).tolist() == [50, 1050, 1000050, 1001050]
    assert micros(found, 1) == TOOK


def test_of_a_trace_that_is_cut_the_whole_steps_are_read(tmp_path):
    text = json.dumps(trace([*ON_GPU, *(annotation("x", at, at + 1) for at in range(1600, 9000))]))
    whole, cut = json.dumps(trace([])), text[: text.index('"ProfilerStep#6"') + 400]
    assert len(whole) < len(cut)
    found = read(written(tmp_path / "t.json", cut.encode()))
    assert {batch for _, batch in micros(found)} == {0}
    assert "The trace is cut" in " ".join(found.about["notes"])
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(text.encode())[:-3000])
    assert micros(read(packed)) == TOOK


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (trace([]), "must have events of a training"),
        (trace([operation("aten::mm", 0, 1)]), "must have a whole step; got 0 begun"),
        (trace(schemaVersion=2), "schemaVersion: must be 1; got 2"),
        (trace([*ON_GPU, annotation("x", 1.7e15, 1.7e15)]), "must be of one clock"),
        (trace([*ON_GPU, {**ON_GPU[0], "pid": 8}]), "must be of one process"),
        (trace([annotation("ProfilerStep#1", 0, 1000), *ON_GPU]), "overlap"),
        (trace([{**each, "ts": 1e300} for each in ON_GPU]), "must have events of a training"),
        (b'{"schemaVersion": 1, \xff\xfe', "must have events of a training"),
        (b'{"schemaVersion": 1}', "must have events of a training"),
        (b'{"traceEvents": 3}', "must have events of a training"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused(tmp_path, content, why):
    with pytest.raises(InputError) as error:
        read(written(tmp_path / "t.json", content))
    assert why in str(error.value)
