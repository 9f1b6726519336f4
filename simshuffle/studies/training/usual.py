"""What holds of a training of which nothing else is known."""

from __future__ import annotations

EPOCHS = 90
"""Epochs of a training of which nothing else is known: those of ResNet-50 on ImageNet-1K in P.
Goyal et al., "Accurate, Large Minibatch SGD", 2017."""
