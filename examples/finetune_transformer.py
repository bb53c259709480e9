"""Fine-tune a small transformer of the package transformers; nothing is downloaded.

    python examples/finetune_transformer.py [--steps 150] [--dir runs/finetune]

There is no pretrained model that comes without a download, so the script makes one: a GPT-2 of two layers that reads
bytes is trained on source code of Python's standard library, saved, and loaded as any pretrained model is. It is then
fine-tuned on English prose, the pages of Python's own help, with weight decay on matrices alone, a warm-up and a linear
decay. It ends with the held-out bits per byte of prose of the model as it was loaded, fine-tuned, and, as the measure of
what the pretraining was worth, of a new one that had the same steps on prose.
"""

import argparse
import math
import pydoc_data.topics
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import DataLoader, random_split
from transformers import GPT2Config, GPT2LMHeadModel

from lightloop import Module, Trainer


class LanguageModel(Module):
    def __init__(self, model, lr):
        super().__init__()
        self.model, self.lr = model.train(), lr  # from_pretrained gives a model in eval mode

    def training_step(self, batch, batch_idx):
        loss = self.model(input_ids=batch, labels=batch).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("bits_per_byte", self.model(input_ids=batch, labels=batch).loss / math.log(2), prog_bar=True)

    def configure_optimizers(self):
        matrices = [parameter for parameter in self.parameters() if parameter.ndim > 1]
        rest = [parameter for parameter in self.parameters() if parameter.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.lr)
        steps = self.loop.total_steps
        warm_up = max(1, steps // 10)
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def loaders(text, batch_size=16, length=128):
    """Loaders of byte sequences ``(batch_size, length)`` for training and validation."""
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
    rows = data[: len(data) // length * length].view(-1, length)
    train, held_out = random_split(rows, [0.9, 0.1], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size, shuffle=True, drop_last=True), DataLoader(held_out, batch_size)


def new_model():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    )


def fit(model, data, steps, lr, directory):
    """Train ``model`` for so many steps; the bits per byte of the held-out part."""
    trainer = Trainer(
        max_epochs=-1,
        max_steps=steps,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        seed=0,
        default_root_dir=directory,
        enable_checkpointing=False,
        weights_summary=None,
    )
    module = LanguageModel(model, lr)
    trainer.fit(module, *data)
    return trainer.validate(module, data[1])["bits_per_byte"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="of pretraining; a third as many of fine-tuning")
    parser.add_argument("--dir", default="runs/finetune", help="where metrics and the pretrained model go")
    arguments = parser.parse_args()

    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    code = loaders("".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)[:400_000])
    prose = loaders("".join(pydoc_data.topics.topics.values())[:400_000])
    steps = arguments.steps // 3

    torch.manual_seed(0)
    model = new_model()
    fit(model, code, arguments.steps, 3e-3, arguments.dir)
    pretrained = Path(arguments.dir) / "pretrained"
    model.save_pretrained(pretrained)

    model = GPT2LMHeadModel.from_pretrained(pretrained)
    quiet = Trainer(logger=False, enable_progress_bar=False, weights_summary=None)
    before = quiet.validate(LanguageModel(model, 0.0), prose[1])["bits_per_byte"]
    after = fit(model, prose, steps, 1e-3, arguments.dir)
    scratch = fit(new_model(), prose, steps, 3e-3, arguments.dir)

    print(f"\nbits per byte of prose\nas loaded:                 {before:.3f}")
    print(f"fine-tuned, {steps} steps:     {after:.3f}\nfrom nothing, {steps} steps:   {scratch:.3f}")


if __name__ == "__main__":
    main()
