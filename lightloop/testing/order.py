"""Assert the order of plugins."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable

from lightloop import Trainer
from lightloop.host.listing import Entry


def assert_order(plugins: Iterable[Entry], *names: str, orders: int = 24) -> None:
    """Assert that ``plugins`` are in the order ``names``, in whichever order they are listed.

    Args:
        plugins: names, classes and instances, as in ``Trainer(plugins=...)``.
        names: their names, in the order in which they are called.
        orders: in how many orders they are listed: all that there are, or so many of them at random.
    """
    listed = list(plugins)
    few = math.factorial(len(listed)) <= orders
    draw = random.Random(0)
    tries = itertools.permutations(listed) if few else (draw.sample(listed, len(listed)) for _ in range(orders))
    for order in tries:
        found = [plugin.name for plugin in Trainer(["-*", *order]).plugins]
        assert found == list(names), f"listed as {[getattr(entry, 'name', entry) for entry in order]}"
