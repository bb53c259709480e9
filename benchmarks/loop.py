"""What the loop costs: the same training by a plain hand-written loop and by Lightloop, side by side.

    python benchmarks/loop.py [--rounds 12] [--batches 2000] [--case bare standard full saving transformer]

A multilayer perceptron 32-64-64-10, batches of 32 in memory, SGD with momentum, one thread. Rounds are interleaved, and
each ratio is taken within one round, because machines are shared and noisy; what counts is the median of the ratios.
The clock runs from the 100th batch until the last is fetched: what it takes to begin is measured by costs.py. Both must
end with the same number of steps and bit-equal weights. Cases:

* bare: forward, backward, step;
* standard: accumulate 4, clip by norm, a learning rate per step, log every 50 steps;
* full: standard, and the norm of gradients tracked, and loss and gradients checked for NaN;
* saving: full, a checkpoint every 500 batches, and validation on 20 batches every 1,000;
* transformer: bare, but of a transformer of 4 layers of width 128, to see what is left of the differences on a network that
  is no toy. One batch takes as long as some hundreds of the others, so that there are 1 % as many.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from lightloop import Module, Plugin, Trainer, hookimpl

ACCUMULATE, CLIP, LOG_EVERY, SAVE_EVERY, VALIDATE_EVERY = 4, 1.0, 50, 500, 1000
CASES = ("bare", "standard", "full", "saving", "transformer")
BARE = ("bare", "transformer")
WARM = 100


class Timed:
    """Batches that time how long it takes to train on all of them but the first and the last; what makes a run ready is left out."""

    def __init__(self, batches):
        self.batches = batches
        self.warm = min(WARM, len(batches) // 4)
        self.seconds = 0.0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield from self.batches[: self.warm]
        started = time.process_time()
        yield from self.batches[self.warm : -1]
        self.seconds = time.process_time() - started
        yield from self.batches[-1:]  # some ask for no more than the last

    @property
    def microseconds(self):
        """What one batch took."""
        return self.seconds / (len(self.batches) - self.warm - 1) * 1e6


class Transformer(nn.Module):
    """Says of a sequence of 64 words which of 10 classes it is of."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, dim_feedforward=512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.classes = nn.Linear(128, 10)

    def forward(self, words):
        return self.classes(self.layers(self.words(words)).mean(1))


def make_net(case):
    torch.manual_seed(1)
    if case == "transformer":
        return Transformer()
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def make_schedule(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.9)


def make_data(batches, case="bare", seed=0):
    generator = torch.Generator().manual_seed(seed)

    def inputs():
        if case == "transformer":
            return torch.randint(0, 1000, (16, 64), generator=generator)
        return torch.randn(32, 32, generator=generator)

    rows = 16 if case == "transformer" else 32
    return [(inputs(), torch.randint(0, 10, (rows,), generator=generator)) for _ in range(batches)]


VALIDATION = make_data(20, seed=1)


def validate(net):
    """The mean loss over the validation data, by hand."""
    net.eval()
    with torch.no_grad():
        losses = [F.cross_entropy(net(inputs), labels) for inputs, labels in VALIDATION]
    net.train()
    return torch.stack(losses).mean().item()


class Saver:
    """Saves and validates by hand at the batches where that is due."""

    def __init__(self, folder, net, optimizer, schedule):
        self.folder, self.parts, self.net = Path(folder), (net, optimizer, schedule), net
        self.rows = []

    def after(self, batches, steps):
        if batches % VALIDATE_EVERY == 0:
            self.rows.append({"val_loss": validate(self.net)})
        if batches % SAVE_EVERY == 0:
            net, optimizer, schedule = (part.state_dict() for part in self.parts)
            state = {"net": net, "optimizer": optimizer, "schedule": schedule, "steps": steps, "batches": batches}
            torch.save(state, self.folder / f"{steps}.pt")
            for old in sorted(self.folder.glob("*.pt"), key=lambda path: int(path.stem))[:-2]:
                old.unlink()


def plain(case, data):
    net = make_net(case)
    optimizer = make_optimizer(net.parameters())
    if case in BARE:
        for inputs, labels in data:
            loss = F.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return net, len(data)
    schedule, steps, rows, running = make_schedule(optimizer), 0, [], 0.0
    parameters = list(net.parameters())
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(folder, net, optimizer, schedule)
        for index, (inputs, labels) in enumerate(data):
            loss = F.cross_entropy(net(inputs), labels)
            running = running + loss.detach()
            (loss / ACCUMULATE).backward()
            if (index + 1) % ACCUMULATE:
                continue
            if case != "standard":
                norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters])
                if not torch.isfinite(norm) or not torch.isfinite(loss):
                    raise ValueError("not finite")
            clipped = nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            steps += 1
            if steps % LOG_EVERY == 0:
                rows.append({"loss": (running / ACCUMULATE).item(), "norm": clipped.item()})
            running = 0.0
            if case == "saving":
                saver.after(index + 1, steps)
    return net, steps


class Net(Module):
    def __init__(self, case):
        super().__init__()
        self.net = make_net(case)
        self.case = case

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        if self.case not in BARE:
            self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        self.log("val_loss", F.cross_entropy(self.net(inputs), labels))

    def configure_optimizers(self):
        optimizer = make_optimizer(self.parameters())
        if self.case in BARE:
            return optimizer
        return [optimizer], [{"scheduler": make_schedule(optimizer), "interval": "step"}]


class Rows(Plugin):
    """Keeps what is logged in memory, as the plain loop does."""

    name = "rows"

    def validate(self):
        self.rows = []

    @hookimpl
    def log_metrics(self, metrics):
        self.rows.append(dict(metrics))


def lightloop(case, data, **more):
    module = Net(case)
    plugins, options, validation = ["-*"], dict(more), None
    if case not in BARE:
        plugins += ["lr_schedule", "log_every", Rows()]
        options |= {"accumulate_grad_batches": ACCUMULATE, "gradient_clip_val": CLIP, "log_every_n_steps": LOG_EVERY}
    if case in ("full", "saving"):
        options |= {"track_grad_norm": 2, "grad_norm_per_parameter": False}
        options |= {"terminate_on_nan": True, "terminate_on_nan_checks": ["loss", "grad"]}
    with tempfile.TemporaryDirectory() as folder:
        if case == "saving":
            plugins += ["checkpoint", "validation", "run_dir"]
            options |= {"default_root_dir": folder, "save_every": f"{SAVE_EVERY} batches"}
            options |= {
                "val_check_interval": VALIDATE_EVERY,
                "check_val_every_n_epoch": None,
                "num_sanity_val_steps": 0,
            }
            validation = VALIDATION
        result = Trainer(plugins=plugins, **options).fit(module, data, validation)
    return module.net, result.global_step


def count_calls(train, case, data):
    """Calls of Python and C functions per batch: unlike time, the same on every run."""
    train(case, data[:8])
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    def run(batches):
        nonlocal calls
        calls = 0
        sys.setprofile(count)
        try:
            train(case, batches)
        finally:
            sys.setprofile(None)
        return calls

    few, many = data[:200], data[:400]  # multiples of every window and logging interval
    return (run(many) - run(few)) / (len(many) - len(few))


def check_equal(one, other):
    (net, steps), (our_net, our_steps) = one, other
    assert steps == our_steps, (steps, our_steps)
    for first, second in zip(net.parameters(), our_net.parameters(), strict=True):
        assert torch.equal(first, second)


def batches(case, of_small):
    """How many batches a round has, where it has so many ``of_small`` networks."""
    least = {"saving": VALIDATE_EVERY, "transformer": 8}.get(case, 0)
    return max(least, of_small // 100 if case == "transformer" else of_small)


def measure(case, data, rounds):
    ratios, plains = [], []
    for train in (plain, lightloop):
        train(case, data[:200])
    for _ in range(rounds):
        by_hand, ours = Timed(data), Timed(data)
        check_equal(plain(case, by_hand), lightloop(case, ours))
        ratios.append(ours.seconds / by_hand.seconds)
        plains.append(by_hand.microseconds)
    low, _, high = statistics.quantiles(ratios, n=4)
    row = {
        "case": case,
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "plain_us_per_batch": round(statistics.median(plains), 1),
    }
    if case in ("bare", "standard", "full"):  # saving has no steady number of calls
        row["calls_plain"] = round(count_calls(plain, case, data), 1)
        row["calls_lightloop"] = round(count_calls(lightloop, case, data), 1)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--case", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(case, make_data(batches(case, arguments.batches), case), arguments.rounds) for case in arguments.case
    ]
    print("| case | lightloop / plain, CPU time | quartiles | plain, µs a batch | calls a batch, plain | lightloop |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        low, high = row["quartiles"]
        calls = [f"{row[name]:.0f}" if name in row else "" for name in ("calls_plain", "calls_lightloop")]
        print(
            f"| {row['case']} | **{row['ratio']:.2f}** | {low:.2f}–{high:.2f} | {row['plain_us_per_batch']:.0f} "
            f"| {calls[0]} | {calls[1]} |"
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
