"""Transformers of GPT's and ViT's kind, with norms before attention and perceptron.

GPT-2: Radford et al., 2019, openai.com/research/better-language-models. Larger ones:
Brown et al., arXiv 2005.14165, table 2.1, without its sparse attention; as Megatron-LM
has them (Narayanan et al., arXiv 2104.04473), the vocabulary is filled up to 51,200
words, and widths are multiples of the heads. ViT: Dosovitskiy et al., arXiv 2010.11929,
table 1, as torchvision has them.

What a block keeps is counted as in Korthikanti et al., arXiv 2205.05198, section 4.1:
of a sequence of s tokens, width h and a heads, s h (34 + 5 a s / h) B at 2 B a value.
Attention keeps all its scores. ViT has no dropout, hence no masks.
"""

from __future__ import annotations

from simshuffle.workload.layers.build import MASK_VALUES, Builder
from simshuffle.workload.layers.layer import LayerList

LOSS_VALUES = 2
"""Values that the loss keeps of each logit: 4 B beside values of 2 B."""


def transformer_block(net: Builder, heads: int, inner: int, dropout: bool) -> None:
    """Add attention and a perceptron of ``inner`` values for each token, each with a
    shortcut.

    Args:
        net: to which layers are added; the last one has shape (width, tokens). Names of
            layers are fixed, so each block needs a `prefix` of its own.
        heads: of attention.
        inner: values of a token inside the perceptron.
        dropout: whether masks of dropouts, and the scores behind one, are kept for the
            backward pass.
    """
    width, tokens = net.shape()
    start = net.last
    net.norm("norm1")
    qkv = net.linear(3 * width, name="qkv", tensor="column")
    # kept for each: the softmax, what a dropout makes of it, and the mask
    scores = heads * tokens**2
    net.layer(
        "attention",
        (width, tokens),
        name="attention",
        predecessors=qkv,
        keeps_input=True,
        extra=scores * (2 + MASK_VALUES if dropout else 1),
        flops=4.0 * tokens**2 * width,
        heads=heads,
    )
    net.linear(width, name="projection", tensor="row")
    start = net.add(start, net.last, mask=dropout, name="add1")
    net.norm("norm2")
    net.linear(inner, name="up", tensor="column")
    net.layer("activation", (inner, tokens), name="gelu", keeps_input=True)
    net.linear(width, name="down", tensor="row")
    net.add(start, net.last, mask=dropout, name="add2")


def gpt(
    name: str, *, blocks: int, width: int, heads: int, tokens: int, words: int
) -> LayerList:
    """Build a GPT, which predicts the next of ``words`` for each of ``tokens``.

    The logits have the weights of the embedding of words; the perceptrons are four
    times as wide as a token.

    Args:
        name: of the network.
        blocks: of attention and a perceptron.
        width: values of a token.
        heads: of attention.
        tokens: of a sample.
        words: of the vocabulary.
    """
    net = Builder(name, (1, tokens))
    shape = (width, tokens)
    net.layer(
        "embedding", shape, name="words", parameters=words * width, tensor="column"
    )
    net.layer(
        "embedding",
        shape,
        name="positions",
        parameters=tokens * width,
        extra=MASK_VALUES * width * tokens,
    )
    for index in range(blocks):
        net.prefix = f"block{index}."
        transformer_block(net, heads, 4 * width, dropout=True)
    net.prefix = ""
    net.norm("norm")
    loss = LOSS_VALUES * words * tokens
    net.linear(words, bias=False, tied=True, name="logits", extra=loss, tensor="column")
    return net.finish()


def vit(name: str, *, blocks: int, width: int, heads: int, patch: int) -> LayerList:
    """Build a vision transformer for 224 x 224 pixels and 1000 classes.

    Args:
        name: of the network.
        blocks: of attention and a perceptron.
        width: values of a token.
        heads: of attention.
        patch: pixels along each edge of a patch, which is a token. Pixels beyond the
            last whole patch are left out.
    """
    net = Builder(name, (3, 224, 224))
    net.conv(width, patch, patch, 0, bias=True, name="patches")
    # one more than patches: the class token, whose vector counts with the positions
    tokens = (224 // patch) ** 2 + 1
    net.layer(
        "embedding", (width, tokens), name="positions", parameters=width * (tokens + 1)
    )
    for index in range(blocks):
        net.prefix = f"block{index}."
        transformer_block(net, heads, 4 * width, dropout=False)
    net.prefix = ""
    net.norm("norm")
    net.layer("other", (width,), name="first_token")
    net.linear(1000, name="classes")
    return net.finish()


NETWORKS = {
    "gpt2_small": lambda: gpt(
        "gpt2_small", blocks=12, width=768, heads=12, tokens=1024, words=50257
    ),
    "gpt_1.3b": lambda: gpt(
        "gpt_1.3b", blocks=24, width=2048, heads=16, tokens=2048, words=51200
    ),
    "gpt_2.7b": lambda: gpt(
        "gpt_2.7b", blocks=32, width=2560, heads=32, tokens=2048, words=51200
    ),
    "gpt_6.7b": lambda: gpt(
        "gpt_6.7b", blocks=32, width=4096, heads=32, tokens=2048, words=51200
    ),
    "gpt_13b": lambda: gpt(
        "gpt_13b", blocks=40, width=5120, heads=40, tokens=2048, words=51200
    ),
    "gpt_175b": lambda: gpt(
        "gpt_175b", blocks=96, width=12288, heads=96, tokens=2048, words=51200
    ),
    "vit_b_16": lambda: vit("vit_b_16", blocks=12, width=768, heads=12, patch=16),
    "vit_l_16": lambda: vit("vit_l_16", blocks=24, width=1024, heads=16, patch=16),
    "vit_h_14": lambda: vit("vit_h_14", blocks=32, width=1280, heads=16, patch=14),
}
