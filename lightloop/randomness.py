"""Random number generators: seed them, and save and restore their state."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable
from typing import Any

import torch


def seed_everything(seed: int) -> int:
    """Seed the generators of Python, numpy and torch, on every device; returns ``seed``.

    Raises:
        ValueError: if ``seed`` is not a whole number from 0 to 2**32 - 1, which is what numpy takes.
    """
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)  # also an integer of numpy
    except TypeError:
        number = -1
    if not 0 <= number < 2**32:
        raise ValueError(f"a seed must be a whole number from 0 to 2**32 - 1; it is {seed!r}")
    import numpy  # it costs a tenth of a second, and only who seeds needs it

    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)
    return number


def keep_random() -> Callable[[], None]:
    """Save the random state of Python, numpy (if imported), the CPU and the accelerator.

    Returns:
        What puts them back to there.
    """
    python, cpu = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy else None
    accelerator = _accelerator_module()
    states = [accelerator.get_rng_state(index) for index in range(accelerator.device_count())] if accelerator else []

    def put_back() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if numpy:
            numpy.random.set_state(legacy)
        for index, state in enumerate(states):
            accelerator.set_rng_state(state, index)

    return put_back


def _accelerator_module() -> Any:
    """The ``torch.cuda``-like module of the accelerator that has been used, if any."""
    device = torch.accelerator.current_accelerator()
    backend = getattr(torch, device.type, None) if device is not None else None
    used = backend is not None and getattr(backend, "is_initialized", lambda: True)()
    return backend if used and hasattr(backend, "get_rng_state") and hasattr(backend, "device_count") else None
