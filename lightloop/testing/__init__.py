"""What plugin authors use to test: the contract, a recorder of hooks, tiny models and data.

:class:`PluginContract` and :func:`assert_order` need pytest and are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

from lightloop.testing.models import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop.testing.recorder import Recorder
from lightloop.testing.syncs import Sync, count_syncs

if TYPE_CHECKING:
    from lightloop.testing.contract import PluginContract, assert_order

__all__ = [
    "PluginContract",
    "Probe",
    "Recorder",
    "Sync",
    "TinyClassifier",
    "assert_order",
    "classification_batches",
    "count_syncs",
    "probe_batches",
]


def __getattr__(name: str) -> Any:
    if name in ("PluginContract", "assert_order"):
        from lightloop.testing import contract

        return getattr(contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
