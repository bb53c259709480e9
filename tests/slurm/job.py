"""What a user's script looks like whose job may be put back; WORK is a folder that all nodes share."""

import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from lightloop import Callback, Module, Trainer, seed_everything
from lightloop.testing import classification_batches

WORK = os.environ["WORK"]


class Net(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def training_step(self, batch):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)]


class Report(Callback):
    def on_train_epoch_start(self, trainer):
        self.say(trainer, "begins")

    def on_train_batch_end(self, trainer):
        time.sleep(0.05)
        self.say(trainer, "batch")

    def say(self, trainer, what):
        if trainer.is_global_zero:
            start = os.environ.get("SLURM_RESTART_COUNT", "0")
            with open(f"{WORK}/trace", "a") as file:
                file.write(f"{what} {start} {trainer.world_size} {trainer.loop.total_batches}\n")


def main():
    seed_everything(3)
    samples = [sample for x, y in classification_batches(20, 8) for sample in zip(x, y, strict=True)]
    trainer = Trainer(
        auto_requeue=True,
        requeue_signal=sys.argv[1],
        seed=3,
        max_epochs=4,
        accumulate_grad_batches=2,
        save_every=None,
        default_root_dir=f"{WORK}/runs",
        callbacks=[Report()],
        enable_progress_bar=False,
        weights_summary=None,
    )
    module = Net()
    result = trainer.fit(module, DataLoader(samples, 4, shuffle=True))
    if trainer.is_global_zero:
        state = {name: value.tolist() for name, value in module.state_dict().items()}
        with open(f"{WORK}/outcome", "w") as file:
            json.dump([result.status, result.global_step, result.metrics, state], file)


if __name__ == "__main__":
    main()
