"""Train a character-level recurrent language model on the source text of Python's own standard library.

    python examples/char_lm.py [--steps 300] [--dir runs/char_lm]
    python examples/char_lm.py --name mine --kill-at 120; python examples/char_lm.py --name mine

Truncated back-propagation through time cuts each batch of 256 characters into pieces of 64 and carries the hidden
state from one to the next; gradients are clipped and the learning rate follows a cosine. It ends with the held-out
loss in bits per character, and a sample.

With a name, the run goes on from its newest checkpoint, if there is one. The second line kills it in the midst of an
epoch of shuffled batches, as a power cut would, and goes on; kill_and_resume.py compares the outcome with that of a run
that nobody killed.
"""

import argparse
import hashlib
import math
import os
import signal
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightloop import Callback, Module, Trainer


class CharLM(Module):
    def __init__(self, alphabet, steps, width=128, lr=4e-3):
        super().__init__()
        self.alphabet, self.steps, self.lr = alphabet, steps, lr
        self.embed = nn.Embedding(len(alphabet), width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(alphabet))

    def forward(self, text, hidden=None):
        out, hidden = self.rnn(self.embed(text), hidden)
        return self.head(out), hidden

    def training_step(self, batch, batch_idx, hiddens):
        text, following = batch
        logits, hiddens = self(text, hiddens)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss, "hiddens": hiddens}

    def validation_step(self, batch, batch_idx):
        text, following = batch
        logits, _ = self(text)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        self.log("val_bits_per_character", loss / math.log(2), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @torch.no_grad()
    def sample(self, prompt, length=200):
        text = torch.tensor([[self.alphabet.index(character) for character in prompt]])
        logits, hidden = self(text)
        generator = torch.Generator().manual_seed(0)
        for _ in range(length):
            probabilities = (logits[:, -1] / 0.7).softmax(-1)
            character = torch.multinomial(probabilities, 1, generator=generator)
            prompt += self.alphabet[character.item()]
            logits, hidden = self(character, hidden)
        return prompt


class PowerCut(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, module):
        if trainer.global_step >= self.step:
            print(
                f"killed after {trainer.global_step} steps, in batch {trainer.batch_idx} of epoch {trainer.current_epoch}",
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGKILL)


def load(characters, batch_size=16, length=256):
    """Loaders of ``(text, following)``, each ``(batch_size, length)``, for training and validation; and the alphabet."""
    library = Path(sysconfig.get_paths()["stdlib"])
    source = ""
    for file in sorted(library.glob("*.py")):
        source += file.read_text(encoding="utf-8", errors="ignore")
        if len(source) >= characters:
            break
    source = "".join(character for character in source[:characters] if character.isascii())
    alphabet = sorted(set(source))
    codes = {character: code for code, character in enumerate(alphabet)}
    text = torch.tensor([codes[character] for character in source])
    rows = (len(text) - 1) // length
    data = TensorDataset(text[: rows * length].view(rows, length), text[1 : rows * length + 1].view(rows, length))
    train, held_out = random_split(data, [0.9, 0.1], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size, shuffle=True, drop_last=True), DataLoader(held_out, batch_size), alphabet


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--characters", type=int, default=400_000, help="how much of the library is read")
    parser.add_argument("--dir", default="runs/char_lm", help="where metrics and checkpoints go")
    parser.add_argument("--name", help="go on with the run of this name")
    parser.add_argument("--kill-at", type=int, help="end with SIGKILL after so many steps")
    arguments = parser.parse_args()

    train, val, alphabet = load(arguments.characters)
    torch.manual_seed(0)
    module = CharLM(alphabet, arguments.steps)
    trainer = Trainer(
        max_epochs=-1,
        max_steps=arguments.steps,
        truncated_bptt_steps=64,
        gradient_clip_val=1.0,
        seed=0,
        log_every_n_steps=10,
        default_root_dir=arguments.dir,
        run_name=arguments.name,
        resume="auto" if arguments.name else None,
        save_every=20,  # steps
        callbacks=[PowerCut(arguments.kill_at)] if arguments.kill_at else [],
    )
    result = trainer.fit(module, train, val)
    metrics = trainer.validate(module, val)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in module.parameters())
    print(f"\nafter {result.global_step} steps: {metrics['val_bits_per_character']:.3f} bits per character held out")
    print(f"sha256 of the weights: {hashlib.sha256(weights).hexdigest()}")
    print("a sample:\n" + module.sample("def "))


if __name__ == "__main__":
    main()
