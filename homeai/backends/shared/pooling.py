"""Vectors of a text's tokens → the text's vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

POOLED: Final[Mapping[str, Callable[[Vector], Vector]]] = {  # of rows, one for each token
    "mean": lambda rows: rows.mean(axis=0),
    "cls": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
}


def unit(vector: Vector) -> Vector:
    """Of length 1; 0 where the model gives nothing but zeros."""
    return vector / (np.linalg.norm(vector) or np.float32(1))
