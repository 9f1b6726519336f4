"""What a strategy takes on a machine at a world size, by closed form and simulated."""

from __future__ import annotations
