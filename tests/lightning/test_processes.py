"""Two processes: each module knows its rank, data is prepared once, and both end with the same weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

sys.path.insert(0, {root!r})
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader

from lightloop import Trainer
from tests.lightning.models import Classifier, Data


class Shuffled(Data):
    def train_dataloader(self):
        return DataLoader(self.train.dataset, 8, shuffle=True)


class Sums(Classifier):
    def on_validation_epoch_end(self):
        ranks = self.all_gather(torch.tensor(float(self.global_rank)))
        self.log("ranks", ranks.sum(), sync_dist=True)


torch.manual_seed(0)
module, data = Sums(), Shuffled()
trainer = Trainer(
    accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, callbacks=[EarlyStopping("val_loss", patience=0, mode="max")],
    logger=False, enable_checkpointing=False, enable_progress_bar=False, weights_summary=None,
)
result = trainer.fit(module, datamodule=data)
weights = sum(parameter.double().sum().item() for parameter in module.parameters())
said = [trainer.global_rank, result.global_step, result.metrics["ranks"], weights, *data.told]
sys.stdout.write("|".join(map(str, said)) + "\\n")  # at once: the other rank writes to the same pipe
"""


@pytest.mark.processes
def test_both_ranks_end_alike(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(Path(__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    first, second = sorted(line for line in done.stdout.splitlines() if "|" in line)
    assert first.split("|")[:3] == ["0", "12", "1.0"]
    assert second.split("|")[1:4] == first.split("|")[1:4]
    assert first.endswith("|prepare_data|setup fit|teardown fit")
    assert second.endswith("|setup fit|teardown fit")
    assert "prepare_data" not in second
