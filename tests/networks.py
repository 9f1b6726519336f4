"""Networks of torch, written from their papers: what the shipped lists of layers are compared with.

ReLUs work in place, as in torchvision; attention is torch's own.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from simshuffle.train.models import WideResNet


def relu():
    return nn.ReLU(inplace=True)


def conv_norm(inputs, outputs, kernel, stride=1, padding=0, groups=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)


def dense(*sizes):
    """Linear layers one after the other, with ReLUs between."""
    parts = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), relu()]
    return parts[:-1]


class Bottleneck(nn.Module):
    def __init__(self, inputs, inner, outputs, stride, groups):
        super().__init__()
        self.body = nn.Sequential(
            *conv_norm(inputs, inner, 1),
            relu(),
            *conv_norm(inner, inner, 3, stride, 1, groups),
            relu(),
            *conv_norm(inner, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Sequential(*conv_norm(inputs, outputs, 1, stride))

    def forward(self, x):
        return F.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def resnet(blocks, groups=1, width=64):
    parts = [*conv_norm(3, 64, 7, 2, 3), relu(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        inner, outputs = groups * width * 2**stage, 256 * 2**stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            parts.append(Bottleneck(inputs, inner, outputs, stride, groups))
            inputs = outputs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16(last=7):
    parts, inputs = [], 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            parts += [nn.Conv2d(inputs, width, 3, padding=1), relu()]
            inputs = width
        parts.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*parts, nn.Flatten(), *dense(512 * last**2, 4096, 4096, 1000))


def alexnet(first=64, second=192, third=384, fourth=256, padding=2):
    parts, widths = [], (3, first, second, third, fourth, 256)
    shapes = [(11, 4, padding), (5, 1, 2), *[(3, 1, 1)] * 3]
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        parts += [nn.Conv2d(inputs, outputs, *shapes[number]), relu()]
        parts += [nn.MaxPool2d(3, 2)] * (number in (0, 1, 4))
    return nn.Sequential(*parts, nn.Flatten(), *dense(256 * 36, 4096, 4096, 1000))


class DenseLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            relu(),
            *conv_norm(inputs, 4 * growth, 1),
            relu(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return torch.cat([x, self.body(x)], dim=1)


def densenet161():
    growth, inputs = 48, 96
    parts = [*conv_norm(3, inputs, 7, 2, 3), relu(), nn.MaxPool2d(3, 2, 1)]
    for count in (6, 12, 36, 24):
        for _ in range(count):
            parts.append(DenseLayer(inputs, growth))
            inputs += growth
        parts += [nn.BatchNorm2d(inputs), relu()]
        if count != 24:
            parts += [nn.Conv2d(inputs, inputs // 2, 1, bias=False), nn.AvgPool2d(2)]
            inputs //= 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def cosmoflow():
    parts = []
    for inputs, outputs in pairwise((4, 32, 64, 128, 256, 512)):
        parts += [nn.Conv3d(inputs, outputs, 2, padding="same"), relu(), nn.MaxPool3d(2)]
    return nn.Sequential(*parts, nn.Flatten(), *dense(512 * 4**3, 128, 64, 4))


class Block(nn.Module):
    """Of a GPT: fused attention, and dropouts."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.dropout(self.projection(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, blocks, width, heads, tokens, words):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, words, bias=False)
        self.logits.weight = self.words.weight

    def forward(self, x):
        positions = self.positions(torch.arange(x.shape[1]))
        return self.logits(self.norm(self.blocks(self.dropout(self.words(x) + positions))))


class ViT(nn.Module):
    """Of torch's own encoder, whose attention is several operations."""

    def __init__(self, blocks, width, heads, patch):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (224 // patch) ** 2 + 1, width))
        keys = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, **keys)
        self.encoder = nn.TransformerEncoder(
            layer, blocks, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.classes = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.classes(self.encoder(x)[:, 0])


NETWORKS = {
    "resnet50": (lambda: resnet((3, 4, 6, 3)), (3, 224, 224)),
    "resnet101": (lambda: resnet((3, 4, 23, 3)), (3, 224, 224)),
    "resnext50": (lambda: resnet((3, 4, 6, 3), groups=32, width=4), (3, 224, 224)),
    "densenet161": (densenet161, (3, 224, 224)),
    "wrn_28_10": (lambda: WideResNet(kind="wide_resnet").build((3, 32, 32), 100), (3, 32, 32)),
    "vgg16": (vgg16, (3, 224, 224)),
    "vgg16_chainer": (lambda: vgg16(8), (3, 226, 226)),
    "alexnet": (alexnet, (3, 224, 224)),
    "alexnet_chainer": (lambda: alexnet(96, 256, 384, 384, 0), (3, 227, 227)),
    "cosmoflow": (cosmoflow, (4, 128, 128, 128)),
    "gpt2_small": (lambda: GPT(12, 768, 12, 1024, 50257), (1024,)),
    "vit_b_16": (lambda: ViT(12, 768, 12, 16), (3, 224, 224)),
}
"""Each network with the shape of a sample, by the name of the shipped list."""
