"""What plugin authors use to test: the contracts, recorders of hooks and of rows, ranks, tiny models and data.

:class:`PluginContract` and :class:`LoggerContract` need pytest, :class:`AcceleratorContract` and :class:`GradientContract`
torch.distributed; they are imported when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lightloop.testing.models import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop.testing.order import assert_order
from lightloop.testing.recorder import Recorder
from lightloop.testing.rows import Rows
from lightloop.testing.syncs import Sync, count_syncs

if TYPE_CHECKING:
    from lightloop.testing.accelerators import AcceleratorContract
    from lightloop.testing.contract import PluginContract
    from lightloop.testing.loggers import LoggerContract
    from lightloop.testing.ranks import run_ranks, values_of
    from lightloop.testing.step_gradients import GradientContract

__all__ = [
    "AcceleratorContract",
    "GradientContract",
    "LoggerContract",
    "PluginContract",
    "Probe",
    "Recorder",
    "Rows",
    "Sync",
    "TinyClassifier",
    "assert_order",
    "classification_batches",
    "count_syncs",
    "probe_batches",
    "run_ranks",
    "values_of",
]
LATER = {
    "AcceleratorContract": "accelerators",
    "GradientContract": "step_gradients",
    "LoggerContract": "loggers",
    "PluginContract": "contract",
    "run_ranks": "ranks",
    "values_of": "ranks",
}
"""In which module those are that are imported when they are asked for."""


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(importlib.import_module(f"lightloop.testing.{LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
