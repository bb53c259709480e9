"""Make random numbers repeat."""

from __future__ import annotations

import random

import torch


def seed_everything(seed: int) -> int:
    """Seed the generators of Python, numpy and torch, on every device; returns ``seed``.

    Raises:
        ValueError: if ``seed`` is not a whole number from 0 to 2**32 - 1, which is what numpy takes.
    """
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise ValueError(f"a seed must be a whole number from 0 to 2**32 - 1; it is {seed!r}")
    import numpy  # it costs a tenth of a second, and only who seeds needs it

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed


__all__ = ["seed_everything"]
