"""A module that is sent signals while it trains."""

import os
import signal

from lightloop.testing import Probe


class Signalled(Probe):
    """Gets signals in batch 3."""

    def __init__(self, *names):
        super().__init__()
        self.names = names

    def training_step(self, batch, batch_idx):
        for name in self.names if batch_idx == 2 else ():
            os.kill(os.getpid(), getattr(signal, name))
        return super().training_step(batch)
