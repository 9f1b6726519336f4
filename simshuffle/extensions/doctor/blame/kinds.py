"""Classify the operations of a training step by the names that frameworks give them:
what a rank does alone, what a group of ranks does together, and what one stage of a
pipeline sends another.

Names: Megatron-LM's timers (megatron/training/training.py), DeepSpeed's
(runtime/engine.py, runtime/pipe/engine.py), torch.distributed and c10d, and the kernels
of NCCL as Kineto shows them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from simshuffle.errors import list_first, refuse


class Role(Enum):
    """Dependence of the operations of a kind on other operations and on other ranks."""

    LOCAL = "a rank does it alone"
    ONWARD = (
        "forward or backward computing, which need not wait for a collective before it"
    )
    COLLECTIVE = "all ranks of a stage end it together"
    GATHER = "a collective that the computing behind it waits for"
    PARTIAL = "a collective of a group of ranks, of which the trace shows one"
    ENDS = "a collective of the first and the last stage of a pipeline"
    EVERYONE = "a collective of all stages"
    SEND = "a stage sends to the one beside"
    RECEIVE = "a stage receives from the one beside"


def _words(text: str) -> frozenset[str]:
    """Return the words of a text that spaces divide."""
    return frozenset(text.split())


COLLECTIVES = frozenset(
    {Role.COLLECTIVE, Role.GATHER, Role.PARTIAL, Role.ENDS, Role.EVERYONE}
)
"""Roles of which a rank does one after the other, beside what it computes."""
LOCAL = frozenset({Role.LOCAL, Role.ONWARD})
PASSING = frozenset({Role.SEND, Role.RECEIVE})
KNOWN_KINDS: dict[str, tuple[str, Role]] = {
    "embedding-grads-all-reduce": ("embedding-grads-all-reduce", Role.ENDS),
    "layernorm-grads-all-reduce": ("layernorm-grads-all-reduce", Role.PARTIAL),
    "non-tensor-parallel-grads-all-reduce": (
        "non-tensor-parallel-grads-all-reduce",
        Role.PARTIAL,
    ),
    "optimizer-clip-main-grad": ("optimizer-clip-main-grad", Role.EVERYONE),
    "optimizer-unscale-and-check-inf": (
        "optimizer-unscale-and-check-inf",
        Role.EVERYONE,
    ),
    **dict.fromkeys(
        (
            *("forward", "fwd", "forward-compute", "forward-pass", "forward-step"),
            *("forward-microstep", "fwd-microstep", "model-forward", "fwd-compute"),
        ),
        ("forward-compute", Role.ONWARD),
    ),
    **dict.fromkeys(
        (
            *("backward", "bwd", "backward-compute", "backward-pass", "backward-step"),
            *("loss-backward", "bwd-compute"),
        ),
        ("backward-compute", Role.ONWARD),
    ),
}
"""Kinds that are known by their whole name: what they are called here, and their role.
The norm of all gradients is of all ranks; that of layers is of a tensor-parallel group,
of which a trace of one rank of each group shows no more. The check for overflows sums
over the ranks of that norm.
"""
COLLECTIVE_WORDS = (
    *(
        "allreduce",
        "reducescatter",
        "alltoall",
        "all2all",
        "broadcast",
        "bcast",
        "barrier",
    ),
    *(
        "gradsync",
        "gradssync",
        "syncgrad",
        "gradientsync",
        "reducegrad",
        "reducetiedgrad",
    ),
    *("gradreduce", "gradsreduce", "gradientreduce", "gradientsreduce", "paramcomms"),
    *("paramsync", "paramssync", "collective", "communicat"),
)
"""Parts of names, without dashes, of what ranks do together."""
LIBRARIES = frozenset(
    {"nccl", "rccl", "gloo", "mpi", "c10d", "ccl", "oneccl", "hccl", "ucc"}
)
COLLECTIVE_NAMES = frozenset({"reduce", "gather", "scatter", "comm", "comms", "a2a"})
"""Words that alone are the name of what ranks do together."""
SENDS = frozenset({"send", "isend"})
RECEIVES = frozenset({"recv", "irecv", "receive"})
SEND_RECEIVES = frozenset({"sendrecv", "p2p"})
DIRECTIONS = {
    "forward": ("forward", "fwd", "activation", "output", "input", "hidden"),
    "backward": ("backward", "bwd", "grad", "gradient"),
}
PASS_WORDS = frozenset({"forward", "fwd", "backward", "bwd"})
DATA_WORDS = _words(
    "data dataloader dataset batch load loader loading read reading io fetch decode preprocess"
    " augment transform collate tokenize h2d d2h d2d memcpy memset copy prefetch"
)
"""What a rank gets its batch by: its own, however long it waits for it."""
WAITING = _words(
    "wait waiting idle stall bubble sync synchronize synchronise block poll"
)
LOCAL_WORDS = _words(
    "compute computation computing calc optimizer optim step update adam adamw sgd lamb loss"
    " criterion clip unscale zero scaler scale scheduler recompute checkpoint eval metric gemm mm"
    " addmm bmm matmul conv convolution conv1d conv2d conv3d attention attn mlp ffn linear norm"
    " layernorm batchnorm rmsnorm groupnorm embedding softmax gelu relu silu activation dropout"
    " elementwise kernel kernels triton cutlass cudnn cublas cublaslt flash fused aten autograd"
    " torch nn module layer layers block model encoder decoder head router expert experts moe"
    " microstep add mul cat pool pooling logging log save gc python cpu gpu cuda hip cast"
)
"""Words of what a rank does alone."""


def split_name(name: str) -> list[str]:
    """Return the words of a kind's name in lower case, without numbers at their ends:
    of ``ncclDevKernel_AllReduce_Sum_f32`` nccl, dev, kernel, all, reduce, sum, f."""
    spaced = re.sub(
        r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name.strip()
    )
    words = [
        re.sub(r"\d+$", "", word) or word
        for word in re.split(r"[\W_]+", spaced.lower())
    ]
    return [word for word in words if word and not word.isdigit()]


def classify(name: str) -> tuple[str, Role] | None:
    """Return what a kind is called here and its role; None where its name says neither.

    Whole names of `KNOWN_KINDS` go first, then sends and receives, collectives, passes,
    and other words of what a rank does alone. A name with a word of `WAITING` says
    nothing, even beside words of passes or of own work, unless it is known, names a
    transfer or a collective, or has one of `DATA_WORDS`. A kind keeps its name, in lower
    case with dashes, unless it is known or a send or receive.
    """
    normalized_name = name.strip().lower().replace("_", "-")
    words = split_name(name)
    if (
        kind_and_role := KNOWN_KINDS.get(normalized_name)
        or KNOWN_KINDS.get("-".join(words))
    ) is not None:
        return kind_and_role
    squashed = "".join(words)
    word_set = set(words)
    if word_set & (SENDS | RECEIVES | SEND_RECEIVES):
        return _classify_transfer(words)
    if "allgather" in squashed:
        return normalized_name, Role.GATHER
    is_collective = (
        bool(word_set & LIBRARIES) or word_set <= COLLECTIVE_NAMES or "a2a" in word_set
    )
    if (words and is_collective) or any(part in squashed for part in COLLECTIVE_WORDS):
        return normalized_name, Role.COLLECTIVE
    if word_set & WAITING and not word_set & DATA_WORDS:
        return None
    if word_set & PASS_WORDS:
        return normalized_name, Role.ONWARD
    return (
        (normalized_name, Role.LOCAL) if word_set & (DATA_WORDS | LOCAL_WORDS) else None
    )


def _classify_transfer(words: Sequence[str]) -> tuple[str, Role] | None:
    """Return the kind and role of what is sent or received, as `forward-send`; None
    without a single direction, or if it does both.
    """
    singular = {word.removesuffix("s") for word in words}
    directions = [
        name for name, synonyms in DIRECTIONS.items() if singular & set(synonyms)
    ]
    sends = bool(singular & SENDS)
    receives = bool(singular & RECEIVES)
    if len(directions) != 1 or sends == receives or singular & SEND_RECEIVES:
        return None
    act, role = ("send", Role.SEND) if sends else ("recv", Role.RECEIVE)
    return f"{directions[0]}-{act}", role


def classify_all(names: Sequence[str], source: str) -> dict[str, tuple[str, Role]]:
    """Return what each of the distinct ``names`` is called here, and its role.

    Raises:
        InputError: a name says neither what a rank does alone nor what ranks do
            together.
    """
    classes = {name: classify(name) for name in names}
    if unknown := [
        name for name, kind_and_role in classes.items() if kind_and_role is None
    ]:
        rule = (
            "must name what a rank does alone (forward, backward, optimizer, loss, data, copy or"
            " a name with -compute), what ranks do together (all-reduce, all-gather,"
            " reduce-scatter, all-to-all, broadcast or barrier, as PyTorch, Megatron, DeepSpeed or"
            " NCCL write them), or forward-send, forward-recv, backward-send, backward-recv"
        )
        refuse("kind", rule, list_first(unknown), _remedy(unknown[0]), source)
    return {
        name: kind_and_role
        for name, kind_and_role in classes.items()
        if kind_and_role is not None
    }


def _remedy(name: str) -> str:
    """Return what to do about a kind whose name does not say who waits in it."""
    words = set(split_name(name))
    if words & (SENDS | RECEIVES | SEND_RECEIVES):
        return f"Split {name} into sends and receives, and name the direction: forward-send."
    if words & WAITING:
        return f"Leave {name} out (other operations show who waits), or name the collective."
    return (
        f"Call it {name}-compute if a rank does it alone, {name}-all-reduce if ranks do it"
        " together; leave it out if it holds a whole step."
    )
