"""The loaders that are resumed if none is named."""

from __future__ import annotations

from typing import Any

from simshuffle.job.scenario.options import kinds_of
from simshuffle.studies.loader import request
from simshuffle.studies.loader.shape import DataSetShape
from simshuffle.workload.orders.order import Order
from simshuffle.workload.resuming import AnyResume
from simshuffle.workload.resuming.law import ResumptionLaw

LawValues = dict[str, dict[str, Any]]
"""Values of resumption laws, by the short name of the law."""


def default_laws(shape: DataSetShape) -> dict[str, ResumptionLaw]:
    """Return every kind of resumption law by a short name, some with several settings.

    A kind has its usual settings, and others too where a setting matters. Buffers and
    blocks are those of `simshuffle.studies.loader.request.default_orders`. Kinds that
    are named nowhere here, such as a plugin's, have their default settings. Laws of
    kinds that do not exist are left out.
    """
    orders = request.default_orders(shape)
    law_kinds = kinds_of(AnyResume)
    values_of_law = {
        **_own_laws(),
        **_torch_laws(shape, orders),
        **_shard_laws(shape, orders),
        **_hugging_face_laws(orders),
        **_node_and_batch_laws(orders),
    }
    known_laws = {
        name: values
        for name, values in values_of_law.items()
        if values["kind"] in law_kinds
    }
    other_kinds = law_kinds.keys() - {values["kind"] for values in known_laws.values()}
    known_laws |= {kind: {"kind": kind} for kind in law_kinds if kind in other_kinds}
    return {
        name: law_kinds[values["kind"]].model_validate(values)
        for name, values in known_laws.items()
    }


def _own_laws() -> LawValues:
    """Return the values of the laws of this project's strategies."""
    return {
        f"own {name}": {
            "kind": "own",
            "strategy": {"kind": f"{kind}_shuffle", **values},
        }
        for name, kind, values in (
            ("local", "local", {}),
            ("partial", "partial_local", {"exchange_fraction": 0.3}),
            ("global", "global", {}),
        )
    }


def _torch_laws(shape: DataSetShape, orders: dict[str, Order]) -> LawValues:
    """Return the values of the laws of PyTorch's loaders and of trainers built on
    PyTorch's loaders.
    """
    return {
        "torch, no state": {"kind": "restart", "of": orders["distributed_sampler"]},
        "torchdata": {"kind": "stateful_dataloader"},
        "torchdata, own sampler": {
            "kind": "stateful_dataloader",
            "stateful_sampler": True,
        },
        "torchft": {"kind": "torchft", "replica_groups": shape.nodes},
        "accelerate": {"kind": "skip_first_batches"},
        "transformers": {"kind": "transformers_trainer"},
        "transformers, not skipping": {
            "kind": "transformers_trainer",
            "ignore_data_skip": True,
        },
    }


def _shard_laws(shape: DataSetShape, orders: dict[str, Order]) -> LawValues:
    """Return the values of the laws of MosaicML Streaming, LitData and WebDataset."""
    samples_of_worker = max(
        shape.samples // (shape.readers.world_size * shape.workers), 1
    )
    return {
        **{
            f"mosaicml {name}": {
                "kind": "mosaicml_streaming",
                "of": orders[f"mosaicml {name}"],
            }
            for name in ("py1e", "py1s", "naive")
        },
        "litdata full": {"kind": "litdata", "of": orders["litdata full, kept"]},
        "litdata window": {"kind": "litdata", "of": orders["litdata window"]},
        "webdataset": {"kind": "webdataset", "of": orders["webdataset"]},
        "webdataset, resampled": {
            "kind": "webdataset",
            "of": {"kind": "webdataset_resampled", "samples": samples_of_worker},
        },
    }


def _hugging_face_laws(orders: dict[str, Order]) -> LawValues:
    """Return the values of the laws of Hugging Face's streams."""
    return {
        "hugging_face": {"kind": "hugging_face", "of": orders["hugging_face"]},
        "hugging_face, a shard at once": {
            "kind": "hugging_face",
            "of": orders["hugging_face"].model_copy(
                update={"max_buffer_input_shards": 1}
            ),
        },
        "torchtitan": {
            "kind": "hugging_face",
            "of": orders["hugging_face"],
            "through": "torchtitan",
        },
        "interleaved": {
            "kind": "hugging_face_interleave",
            "of": {"kind": "hugging_face_interleave"},
        },
    }


def _node_and_batch_laws(orders: dict[str, Order]) -> LawValues:
    """Return the values of the laws of torchdata's nodes, Lightning, Levanter and Megatron."""
    return {
        "torchdata nodes": {
            "kind": "torchdata_nodes",
            "of": {"kind": "torchdata_nodes"},
        },
        "lightning": {"kind": "lightning"},
        "lightning, torchdata": {"kind": "lightning", "stateful": True},
        "levanter": {"kind": "levanter", "of": orders["levanter block"]},
        "megatron": {"kind": "megatron"},
        "megatron cyclic": {"kind": "megatron", "dataloader_type": "cyclic"},
    }
