"""What plugin authors use to test: a recorder of hooks, tiny models and data."""

from lightloop.testing.models import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop.testing.recorder import Recorder

__all__ = ["Probe", "Recorder", "TinyClassifier", "classification_batches", "probe_batches"]
