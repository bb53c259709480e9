"""What a user's script looks like that goes on when a worker is lost; WORK is a folder that all workers share."""

import os
import time

import horovod.torch as hvd
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches

WORK = os.environ["WORK"]


class Report(Plugin):
    name = "report"

    @hookimpl
    def before_epoch(self, loop):
        print(f"rank {loop.world.rank} of {loop.world.size} begins at step {loop.global_step}", flush=True)

    @hookimpl
    def between_batches(self, loop):
        with open(f"{WORK}/pid.{os.environ['HOROVOD_HOSTNAME']}", "w") as file:
            file.write(str(os.getpid()))
        if loop.world.is_main:
            with open(f"{WORK}/step.part", "w") as file:
                file.write(str(loop.global_step))
            os.replace(f"{WORK}/step.part", f"{WORK}/step")
        time.sleep(0.1)


@hvd.elastic.run
def train(state):
    torch.manual_seed(0)
    batches = classification_batches(30)
    plugins = ["-*", "lockstep", "checkpoint", "run_dir", Report]
    trainer = Trainer(plugins, strategy="horovod", checkpoint_dir=f"{WORK}/checkpoints", save_every=2, resume="auto")
    result = trainer.fit(TinyClassifier(), batches)
    print(f"rank {hvd.rank()} of {hvd.size()} ended {result.status} at step {result.global_step}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    train(hvd.elastic.TorchState())  # what is to be kept is in the checkpoints
