"""Train a character-level recurrent language model on the source text of Python's own standard library.

    python examples/char_lm.py [--steps 300] [--dir runs/char_lm]

Truncated back-propagation through time cuts each batch of 256 characters into pieces of 64 and carries the hidden
state from one to the next; gradients are clipped and the learning rate follows a cosine. It ends with the held-out
loss in bits per character, and a sample.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from lightloop import Module, Trainer


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


def load(characters=400_000, batch_size=16, length=256):
    """Batches of ``(text, following)``, each ``(batch_size, length)``, for training and validation; and the alphabet."""
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
    inputs = text[: rows * length].view(rows, length)
    following = text[1 : rows * length + 1].view(rows, length)
    shuffled = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    batches = [(inputs[rows], following[rows]) for rows in shuffled.split(batch_size)[:-1]]
    held_out = max(1, len(batches) // 10)
    return batches[held_out:], batches[:held_out], alphabet


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dir", default="runs/char_lm", help="where metrics go")
    arguments = parser.parse_args()

    train, val, alphabet = load()
    torch.manual_seed(0)
    module = CharLM(alphabet, arguments.steps)
    trainer = Trainer(
        max_epochs=-1,
        max_steps=arguments.steps,
        truncated_bptt_steps=64,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        default_root_dir=arguments.dir,
    )
    result = trainer.fit(module, train, val)
    metrics = trainer.validate(module, val)
    print(f"\nafter {result.global_step} steps: {metrics['val_bits_per_character']:.3f} bits per character held out")
    print("a sample:\n" + module.sample("def "))


if __name__ == "__main__":
    main()
