"""The usual length of a training, where a user says nothing."""

from __future__ import annotations

EPOCHS = 90
"""Epochs of a training, where the user does not say: those of ResNet-50 on ImageNet-1K
in P. Goyal et al., "Accurate, Large Minibatch SGD", 2017.
"""
