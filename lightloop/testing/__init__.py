"""What plugin authors use to test: a recorder of hooks, tiny models and data."""

from lightloop.testing.models import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop.testing.recorder import Recorder
from lightloop.testing.syncs import Sync, count_syncs

__all__ = ["Probe", "Recorder", "Sync", "TinyClassifier", "classification_batches", "count_syncs", "probe_batches"]
