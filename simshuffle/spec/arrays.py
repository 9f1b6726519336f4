"""The kinds of arrays of numpy, by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
"""Whole numbers of any size."""
Ints32 = NDArray[np.int32]
Ints64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
