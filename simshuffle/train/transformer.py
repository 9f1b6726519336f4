"""A vision transformer of torch's own blocks; `simshuffle.train.models.Vit` is its
record.
"""

from __future__ import annotations

import torch
from torch import nn

FIRST_POSITIONS = 0.02
"""Standard deviation of the positions' first values
(github.com/google-research/vision_transformer, vit_jax/models_vit.py).
"""


class VisionTransformer(nn.Module):
    """Takes images of ``shape`` (channels, height, width), of whose sides
    ``patch_size`` is a divisor, as (n, *shape), and gives logits (n, classes).

    Each patch becomes a vector of ``width`` numbers, plus a learned one for its place;
    then ``depth`` blocks of attention with so many ``heads`` and a perceptron four
    times as wide, a layer norm, the mean over patches, and a linear head.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        patch_size: int,
        width: int,
        depth: int,
        heads: int,
    ) -> None:
        super().__init__()
        channels, height, image_width = shape
        self.patches = nn.Conv2d(channels, width, patch_size, patch_size)
        num_patches = (height // patch_size) * (image_width // patch_size)
        self.positions = nn.Parameter(torch.empty(num_patches, width))
        nn.init.normal_(self.positions, std=FIRST_POSITIONS)
        # one by one, because nn.TransformerEncoder begins all blocks with the same weights
        self.blocks = nn.Sequential(*(_block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, classes) of images (n, channels, height, width)."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return logits


def _block(width: int, heads: int) -> nn.Module:
    """Return attention and a perceptron with GELU, each after its norm, without
    dropout, for inputs (n, patches, ``width``).
    """
    return nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
    )
