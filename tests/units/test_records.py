"""Records of trainings, our own and those of others: what is read is what was recorded."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.doctor.records.chakra_schema import (
    BATCH,
    CHECKPOINT,
    COLL,
    COMP,
    STORAGE,
    ChakraNode,
    StorageOperation,
    read_nodes,
)
from simshuffle.extensions.doctor.records.reading import RECORD, read
from simshuffle.extensions.doctor.records.record import Record, make_rows
from simshuffle.extensions.interop.exports import chakra as written_chakra
from simshuffle.extensions.interop.exports.program import make_program
from tests.small import small as scenario

RECORDS, OTHERS = (Path(__file__).parents[1] / "data" / name for name in ("records", "others"))


def small():
    """A record of two batches of a rank."""
    columns = {"operation": ["wait", "step"] * 2, "start_s": [0.0, 1.0, 3.0, 3.5]}
    columns |= {"seconds": [1.0, 2.0, 0.5, 2.5], "batch": [0, 0, 1, 1]}
    return Record(make_rows(columns), {"made_by": "simshuffle", "ranks": 1, "notes": []}, "here")


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
        (b"\x1f\x8bno", "a file that begins b''"),
        (gzip.compress(b"hello", mtime=0), "a file that begins b'hello'"),
    ],
)
def test_a_packed_file_that_is_no_record_is_refused_with_what_is_read(tmp_path, content, why):
    (tmp_path / "given").write_bytes(content)
    with pytest.raises(InputError, match=f"(?s)given.*{why}"):
        read(tmp_path / "given")


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


ON_GPU = json.loads((OTHERS / "gpu.json").read_text())
"""Two steps. The copy takes 20 us, the forward pass 100. That backward is from 330 us, when its
first kernel begins, to 700, when the sum ends; of the 250 us of the sum the backward pass hides
80, and the optimizer's kernel 10."""


SIZES = {"Input Dims": [[10, 5]], "Input type": ["c10::BFloat16"]}
ON_CPU = json.loads((OTHERS / "cpu.json").read_text())
"""The sum is from 320 to 800 us. Autograd ends at 500, the sums are copied at 790: 290 us are not
hidden, and 10 us of autograd, that only asked for the sum. The next sum is not finished: it ends
with its step, at 1500, and from 1450 on only the optimizer hides it, for 10 us."""


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
    (copy,) = found.rows_of("copy").itertuples()
    (summed,) = found.rows_of("allreduce").itertuples()
    assert (copy.nbytes, summed.nbytes) == (4096, 4000)
    assert copy.start_s == pytest.approx(110e-6)


def test_where_the_processor_computes_what_no_operation_hides_is_exposed(tmp_path):
    found = read(written(tmp_path / "t.json", trace(ON_CPU, deviceProperties=[])))
    assert micros(found) == {
        **{("wait", 0): 100, ("step", 0): 900, ("forward", 0): 90, ("backward", 0): 510},
        **{("optimizer", 0): 30, ("allreduce", 0): 300},
        **{("wait", 1): 250, ("step", 1): 250, ("backward", 1): 50, ("optimizer", 1): 10},
        ("allreduce", 1): 40,
    }
    assert found.about["model"] == {"gradient_nbytes": 100, "buckets": [100]}
    assert found.about["device"] == "cpu"


def test_of_sums_that_overlap_no_moment_is_waited_for_twice(tmp_path):
    """Two from 100 us on, until 200 and until 250; a kernel hides the last 10 us of the second."""
    events = [
        *(annotation(WAIT, 0, 10), operation("aten::mm", 20, 30)),
        *launched("kernel", "ncclKernel_AllReduce", 50, 100, 200, 1),
        *launched("kernel", "ncclKernel_AllGather", 60, 100, 250, 2),
        *launched("kernel", "gemm", 70, 240, 300, 3),
    ]
    summed = read(written(tmp_path / "t.json", trace(events))).rows_of("allreduce")
    assert (summed["seconds"] * 1e6).round(3).tolist() == [100, 40]
    assert summed["nbytes"].tolist() == [0, 0]


def test_a_call_of_a_loader_that_has_no_batch_left_ends_an_epoch(tmp_path):
    events = [
        *(annotation(WAIT, 0, 10), operation("aten::mm", 20, 30)),
        *(annotation(WAIT, 40, 41), operation("aten::random_", 42, 43)),
        *(annotation(WAIT, 50, 55), operation("aten::mm", 60, 70)),
        annotation(WAIT, 80, 81),
    ]
    rows = read(written(tmp_path / "t.json", events)).rows_of("wait")
    assert rows[["epoch", "batch"]].to_numpy().tolist() == [[0, 0], [1, 0]]
    assert (rows["seconds"] * 1e6).round(3).tolist() == [10, 5]


def test_without_a_loader_a_step_of_the_profiler_is_a_batch(tmp_path):
    events = [annotation("ProfilerStep#1", 0, 100), annotation("ProfilerStep#2", 100, 250)]
    found = read(written(tmp_path / "t.json", trace(events)))
    assert micros(found) == {("step", 0): 100, ("step", 1): 150}
    assert "the trace does not show waits" in " ".join(found.about["notes"])


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
    waits = found.rows_of("wait")
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


def test_two_ranks_of_ddp_over_gloo_are_read():
    """Made by make_ddp.py beside them: a network of 64 x 64 + 64 + 64 x 4 + 4 floats, in one
    bucket. Each rank sums it once a step, within the backward pass."""
    found = read(RECORDS)
    assert found.about["ranks"] == 2
    assert found.about["model"]["buckets"] == [4 * 4420]
    assert "Batches are counted" in found.about["notes"][0]
    counts = found.rows.groupby(["rank", "operation"], observed=True).size()
    assert set(counts) == {3}
    assert len(counts) == 2 * len({"wait", "step", *PASSES, "allreduce"})
    took = found.rows.pivot(index=["rank", "batch"], columns="operation", values="seconds")
    assert (took["allreduce"] > 0).all()
    assert (took["allreduce"] < took["backward"]).all()
    assert (took[[*PASSES]].sum(axis=1) < took["step"]).all()


PASSES = ("forward", "backward", "optimizer")


@pytest.mark.parametrize("with_stack", [False, True])
def test_a_trace_that_torch_writes_here_is_read(tmp_path, with_stack):
    torch = pytest.importorskip("torch", reason="torch, which writes the trace, is not installed")
    data = torch.utils.data.TensorDataset(torch.ones(6, 4))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, with_stack=with_stack) as profiler:
        for _ in range(2):
            for (samples,) in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True):
                optimizer.zero_grad()
                model(samples).sum().backward()
                optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "t.json.gz"))
    rows = read(tmp_path / "t.json.gz").rows
    assert set(rows["operation"]) == {"wait", "step", *PASSES}
    for operation in ("wait", "step", *PASSES):
        found = rows[rows["operation"] == operation][["epoch", "batch"]].to_numpy().tolist()
        assert found == [[epoch, batch] for epoch in (0, 1) for batch in range(3)]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (trace([*ON_GPU, annotation("x", 1.7e15, 1.7e15)]), "must have one clock"),
        (trace([*ON_GPU, {**ON_GPU[0], "pid": 8}]), "must be of one process"),
        (trace([annotation("ProfilerStep#1", 0, 1000), *ON_GPU]), "overlap"),
        (trace([{**each, "ts": 1e300} for each in ON_GPU]), "must have events of a training"),
        (b'{"schemaVersion": 1, \xff\xfe', "must have events of a training"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused(tmp_path, content, why):
    with pytest.raises(InputError) as error:
        read(written(tmp_path / "t.json", content))
    assert why in str(error.value)


# ----------------------------------------------------------------------- DLIO, TraceML, Ray, Chakra


DLIO = json.loads((OTHERS / "dlio.json").read_text())
"""Files of an output folder, of two ranks. In the first block the last batch was only loaded."""


def dlio(folder):
    (folder / ".hydra").mkdir()
    for name, content in DLIO.items():  # JSON is YAML
        written(folder / name, content)
    return folder


def test_an_output_folder_of_dlio_is_read(tmp_path):
    """proc has the load in it: the first step is 1.5 - 0.5 s."""
    found = read(dlio(tmp_path))
    rows = found.rows[found.rows["rank"] == 1]
    columns = ["operation", "epoch", "batch", "start_s", "seconds", "count"]
    assert [tuple(row) for row in rows[columns].round(9).itertuples(index=False)] == [
        ("wait", 0, 0, 0.0, 0.5, 7),
        ("step", 0, 0, 0.5, 1.0, 7),
        ("wait", 0, 1, 1.5, 0.1, 7),
        ("step", 0, 1, 1.6, 0.3, 7),
        ("wait", 0, 2, 1.9, 0.2, 7),
        ("step", 0, 2, 2.1, 0.1, 7),
        ("wait", 1, 0, 3.5, 0.25, 7),
        ("step", 1, 0, 3.75, 1.0, 7),
    ]
    about = found.about
    assert about["loaders"] == [{"batch_size": 7, "num_workers": 2, "samples": 30}]
    assert about["host"] == {"name": "n1", "cores": 4, "memory_nbytes": 2 * 2**30}
    assert "71.2 % of the time (AU)" in " ".join(about["notes"])


def traceml(**metrics):
    """A summary of two ranks and three steps; rank 1 waits for twice as long."""
    known = {"input_wait_ms": 20.0, "traced_step_time_ms": 80.0, "h2d_ms": None, "forward_ms": 30.0}
    rows = {
        str(rank): {
            "identity": {"global_rank": rank, "world_size": 2},
            "metrics": known | {"input_wait_ms": 20.0 * (1 + rank)} | metrics,
        }
        for rank in (0, 1)
    }
    section = {"global": {"window": {"steps_analyzed": 3, "diagnosis_clock": "gpu"}}}
    section["groups"] = {"by": "global_rank", "rows": rows}
    about = {"schema_version": 1.9, "duration_s": 12.5, "meta": {"world_size": 2}}
    return {**about, "primary_diagnosis": {}, "step_time": section}


def test_a_summary_of_traceml_is_read(tmp_path):
    written(tmp_path / "final_summary.json", traceml(optimizer_ms=10.0))
    found = read(tmp_path)
    assert found.rows.equals(read(tmp_path / "final_summary.json").rows)
    assert found.about["seconds"] == 12.5
    parts = found.rows_of("forward", "optimizer")
    mine = parts[(parts["rank"] == 0) & (parts["batch"] == 1)]
    assert mine["start_s"].round(9).tolist() == [0.12, 0.15]  # the second step begins at 0.12 s
    assert micros(found, 1) == {
        (name, batch): 1e3 * took
        for name, took in {"wait": 40, "step": 80, "forward": 30, "optimizer": 10}.items()
        for batch in range(3)
    }
    notes = " ".join(found.about["notes"])
    assert "Not measured by TraceML for all ranks: backward, copy." in notes
    assert "times of this clock: gpu" in notes


RAY = (OTHERS / "ray.txt").read_text()
"""Of ray 2.60, shortened; it also told the batches, as here in `TOLD`."""
TOLD = "Total batches consumed: 8\nTotal rows consumed: 400\n"


@pytest.mark.parametrize("text", [RAY, RAY + TOLD])
def test_the_stats_of_ray_data_are_read(tmp_path, text):
    """Eight batches: 2.4 ms of waiting, and 1.2 s of steps. Older ones tell the mean of making a
    batch and its sum, and so their number."""
    found = read(written(tmp_path / "stats.txt", text.encode()))
    waits, steps, reads = (found.rows_of(name) for name in ("wait", "step", "read"))
    assert len(waits) == len(steps) == 8
    assert (waits["seconds"] * 1e6).round(6).tolist() == [300] * 8
    assert steps["seconds"].round(9).tolist() == [0.15] * 8
    assert set(waits["count"]) == {50 if "consumed" in text else 0}
    assert reads[["seconds", "cpu_s", "count", "nbytes"]].round(9).to_numpy().tolist() == [
        [0.00802, 0.00477, 4, 3200]
    ]
    assert found.rows_of("transform")["seconds"].round(9).tolist() == [0.16973]
    assert found.rows_of("collate")["seconds"].round(9).tolist() == [12e-6]


def test_the_metrics_of_ray_train_are_read_with_a_worker_each(tmp_path):
    one = {"iter_total_blocked_s": 2.0, "iter_user_s": 6.0, "iter_batches_total": 4}
    two = {"data_iter_total_blocked_seconds": 1.0, "ray_data_iter_user_seconds": 3.0}
    found = read(written(tmp_path / "m.json", [one, two | {"data_iter_batches_total": 2}]))
    assert found.about["ranks"] == 2
    sums = found.rows.groupby(["rank", "operation"], observed=True)["seconds"].sum()
    assert sums.to_dict() == {(0, "wait"): 2, (0, "step"): 6, (1, "wait"): 1, (1, "step"): 3}


def test_thousands_of_batches_of_one_mean_are_not_all_written(tmp_path):
    one = {"iter_total_blocked_s": 2.0, "iter_user_s": 6.0, "iter_batches_total": 10**12}
    found = read(written(tmp_path / "m.json", one))
    assert len(found.rows) == 2000
    assert "The first 1000 of 1000000000000 batches stand for all" in " ".join(found.about["notes"])


def test_batches_of_every_rank_that_stand_for_all_are_noted(tmp_path):
    many = {"iter_total_blocked_s": 2.0, "iter_user_s": 6.0, "iter_batches_total": 5000}
    few = many | {"iter_batches_total": 4}
    notes = read(written(tmp_path / "m.json", [many, few])).about["notes"]
    assert [note for note in notes if "first 1000 of 5000" in note]
    assert len(notes) == len(set(notes))


@pytest.mark.parametrize("storage", [False, True])
def test_what_is_exported_to_chakra_is_read_as_it_was(tmp_path, storage):
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": 0.3}
    made = make_program(scenario(workload__exchange=exchange), 1, 1)
    written_chakra.write(made, tmp_path / "t", lambda share: None, storage=storage)
    found, rows = read(tmp_path / "t"), read(tmp_path / "t").rows
    assert found.about["ranks"] == made.world_size
    for rank in range(made.world_size):
        nodes = written_chakra.nodes_of_rank(made, rank, storage=storage)
        back, unnamed = read_nodes(tmp_path / "t" / f"exchange.{rank}.et")
        assert unnamed == ""
        assert [node.seconds for node in back] == pytest.approx(
            [node.seconds for node in nodes], abs=0.5e-6
        )
        for node, was in zip(back, nodes, strict=True):
            told = (node.id, node.name, node.kind, node.dependencies, node.attributes, node.storage)
            assert told == (
                was.id,
                was.name,
                was.kind,
                was.dependencies,
                was.attributes,
                was.storage,
            )
        mine = rows[rows["rank"] == rank]
        forward, *_ = mine[mine["operation"] == "forward"]["seconds"]
        assert forward == pytest.approx(made.gradients.forward_s[rank], abs=0.5e-6)
        reads = mine[mine["operation"] == "read"]
        wanted = [step.read_nbytes[rank] for step in made.steps if step.read_nbytes[rank]]
        assert reads["nbytes"].tolist() == np.round(wanted).tolist() * storage
    assert found.about["model"]["gradient_nbytes"] == made.gradients.nbytes


def test_a_batch_of_chakra_is_waited_for_as_long_as_nothing_hides_it(tmp_path):
    """The second batch is fetched from 1 to 4 s, while there is a backward pass until 3: 1 s. The
    first is until 1 s, and its step is then 2 s; the last step is until the checkpoint's end."""
    nodes = [
        *(ChakraNode(1, "batch", BATCH, (), 1.0), ChakraNode(2, "batch", BATCH, (1,), 3.0)),
        *(ChakraNode(3, "forward", COMP, (1,), 0.5), ChakraNode(4, "backward", COMP, (3,), 1.5)),
        ChakraNode(5, "sum", COLL, (4,), 0.0, {"comm_size": 2**20}),
        *(
            ChakraNode(6, "open", STORAGE, (), 0.1, {}, StorageOperation(1, 0)),
            ChakraNode(7, "aten::mm", COMP, (2,), 1.0),
        ),
        ChakraNode(8, "save", CHECKPOINT, (7,), 2.0),
    ]
    (tmp_path / "t.5.et").write_bytes(written_chakra.encode_trace(nodes))
    found = read(tmp_path / "t.5.et")
    assert {key: took / 1e6 for key, took in micros(found).items()} == {
        **{("wait", 0): 1, ("step", 0): 2, ("wait", 1): 1, ("step", 1): 3, ("open", 0): 0.1},
        **{("forward", 0): 0.5, ("backward", 0): 1.5, ("allreduce", 0): 0},
    }
    assert found.about["model"]["buckets"] == [2**20]
    notes = " ".join(found.about["notes"])
    assert "The longest checkpoint took 2 s" in notes
    assert "1 nodes are left out of the record: others" in notes


def test_a_wait_of_chakra_lasts_until_its_step_begins(tmp_path):
    """The second batch is fetched from 1 to 4 s, behind a forward pass until 3: the loop waits from
    3 s on, and neither the pass nor the fetch counts twice."""
    nodes = [
        *(ChakraNode(1, "batch", BATCH, (), 1.0), ChakraNode(2, "batch", BATCH, (1,), 3.0)),
        *(ChakraNode(3, "forward", COMP, (1,), 2.0), ChakraNode(4, "forward", COMP, (2,), 0.5)),
    ]
    (tmp_path / "t.0.et").write_bytes(written_chakra.encode_trace(nodes))
    rows = read(tmp_path / "t.0.et").rows.set_index(["operation", "batch"]).sort_index()
    waits, steps = rows.loc["wait"], rows.loc["step"]
    assert waits["start_s"].tolist() == pytest.approx([0.0, 3.0])
    assert (waits["start_s"] + waits["seconds"]).tolist() == pytest.approx([1.0, 4.0])
    assert steps["start_s"].tolist() == pytest.approx([1.0, 4.0])
    assert steps["seconds"].tolist() == pytest.approx([2.0, 0.5])


def chakra(*nodes):
    return written_chakra.encode_trace(nodes)


_ATTRIBUTE = bytes([1 << 3 | 2, 2, *b"ab", 2 << 3 | 2, 9])
WITHOUT_VERSION = bytes([len(_ATTRIBUTE) + 2, 2 << 3 | 2, len(_ATTRIBUTE), *_ATTRIBUTE])
"""A trace's metadata: an attribute called ab, whose second field is to have 9 bytes."""


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("t.json", traceml(input_wait_ms=None), "must have steps with input_wait_ms"),
        ("t.json", json.dumps(traceml()).encode() + b"\xff", "must be whole JSON"),
        ("t.et", chakra(), "must have nodes that take time"),
        ("t.et", chakra(ChakraNode(1, "forward", COMP, (), 1.0))[:-2], "it ends too early"),
        ("t.et", chakra().replace(b"0.0.4", b"0.0.9"), "must be 0.0.4; got b'0.0.9'"),
        ("t.et", chakra() + b"\x02\x0b\x00", "a field of wire type 3"),
        ("t.et", chakra() + b"\xff" * 20, "a number of more than 64 bits"),
        ("t.et", WITHOUT_VERSION + chakra()[1 + chakra()[0] :], "it ends too early"),
    ],
)
def test_what_is_odd_in_other_formats_is_refused(tmp_path, name, content, why):
    with pytest.raises(InputError) as error:
        read(written(tmp_path / name, content))
    assert why in str(error.value)


def test_a_run_of_dlio_without_a_summary_says_no_number_of_samples(tmp_path):
    folder = dlio(tmp_path)
    (folder / "summary.json").unlink()
    assert "samples" not in read(folder).about["loaders"][0]


def test_a_folder_of_dlio_without_batches_is_refused(tmp_path):
    written(tmp_path / "0_output.json", {"hostname": "n1", "1": {"load": {}}})
    with pytest.raises(InputError, match="must have batches of training"):
        read(tmp_path)
