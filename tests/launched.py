"""A training function that knows nothing of who starts it."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from lightloop import Callback, Trainer, seed_everything
from lightloop.testing import TinyClassifier, classification_batches


class Kill(Callback):
    """Loses a worker, once."""

    def __init__(self, marker):
        self.marker = Path(marker)

    def on_train_batch_end(self, trainer):
        if trainer.global_rank == 1 and trainer.global_step == 7 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train(config):
    torch.set_num_threads(1)
    seed_everything(3)
    samples = [sample for x, y in classification_batches(10) for sample in zip(x, y, strict=True)]
    trainer = Trainer(
        max_epochs=3,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        seed=3,
        checkpoint_dir=config["folder"],
        save_every=2,
        resume="auto",
        callbacks=[Kill(config["kill"])] if "kill" in config else [],
        logger=False,
        enable_progress_bar=False,
        weights_summary=None,
    )
    module = TinyClassifier()
    result = trainer.fit(module, DataLoader(samples, 4, shuffle=True))
    outcome = {
        "processes": trainer.world_size,
        "steps": result.global_step,
        "weights": [parameter.tolist() for parameter in module.parameters()],
    }
    if trainer.is_global_zero:
        Path(config["folder"], "outcome.json").write_text(json.dumps(outcome))
    return outcome


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
