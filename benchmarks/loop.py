"""What the loop costs: the same training by a plain hand-written loop and by Lightloop, side by side.

    python benchmarks/loop.py [--rounds 12] [--batches 2000] [--case bare standard full]

A multilayer perceptron 32-64-64-10, batches of 32 in memory, SGD with momentum, one thread. Rounds are interleaved, and
each ratio is taken within one round, because machines are shared and noisy; what counts is the median of the ratios.
Both must end with the same number of steps and, in the bare case, bit-equal weights. Cases:

* bare: forward, backward, step;
* standard: accumulate 4, clip by norm, a learning rate per step, log every 50 steps;
* full: standard, and the norm of gradients tracked, and loss and gradients checked for NaN.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from lightloop import Module, Plugin, Trainer, hookimpl

ACCUMULATE, CLIP, LOG_EVERY = 4, 1.0, 50


def make_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def make_schedule(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.9)


def make_data(batches):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(32, 32, generator=generator), torch.randint(0, 10, (32,), generator=generator))
        for _ in range(batches)
    ]


def plain(case, data):
    net = make_net()
    optimizer = make_optimizer(net.parameters())
    if case == "bare":
        for inputs, labels in data:
            loss = F.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return net, len(data)
    schedule, steps, rows, running = make_schedule(optimizer), 0, [], 0.0
    parameters = list(net.parameters())
    for index, (inputs, labels) in enumerate(data):
        loss = F.cross_entropy(net(inputs), labels)
        running = running + loss.detach()
        (loss / ACCUMULATE).backward()
        if (index + 1) % ACCUMULATE:
            continue
        if case == "full":
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
    return net, steps


class Net(Module):
    def __init__(self, case):
        super().__init__()
        self.net = make_net()
        self.case = case

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        if self.case != "bare":
            self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = make_optimizer(self.parameters())
        if self.case == "bare":
            return optimizer
        return [optimizer], [{"scheduler": make_schedule(optimizer), "interval": "step"}]


class Rows(Plugin):
    """Keeps what is logged in memory, as the plain loop does."""

    name = "rows"

    def check(self):
        self.rows = []

    @hookimpl
    def log_metrics(self, metrics):
        self.rows.append(dict(metrics))


def lightloop(case, data):
    module = Net(case)
    if case == "bare":
        trainer = Trainer(plugins=["-*"])
    else:
        options = {"accumulate_grad_batches": ACCUMULATE, "gradient_clip_val": CLIP, "log_every_n_steps": LOG_EVERY}
        if case == "full":
            options |= {"track_grad_norm": 2, "grad_norm_per_parameter": False, "terminate_on_nan": True, "terminate_on_nan_checks": ["loss", "grad"]}
        trainer = Trainer(plugins=["-*", "lr_schedule", "log_every", Rows()], **options)
    result = trainer.fit(module, data)
    return module.net, result.global_step


def cpu_time(train, case, data):
    started = time.process_time()
    net, steps = train(case, data)
    return time.process_time() - started, net, steps


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


def measure(case, data, rounds):
    ratios, plains = [], []
    for train in (plain, lightloop):
        train(case, data[:200])
    for _ in range(rounds):
        one, net, steps = cpu_time(plain, case, data)
        other, ours, our_steps = cpu_time(lightloop, case, data)
        assert steps == our_steps, (steps, our_steps)
        tolerance = 0.0 if case == "bare" else 1e-4
        for first, second in zip(net.parameters(), ours.parameters(), strict=True):
            assert torch.allclose(first, second, rtol=tolerance, atol=tolerance)
        ratios.append(other / one)
        plains.append(one / len(data) * 1e6)
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "case": case,
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "plain_us_per_batch": round(statistics.median(plains), 1),
        "calls_plain": round(count_calls(plain, case, data), 1),
        "calls_lightloop": round(count_calls(lightloop, case, data), 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--case", nargs="+", default=["bare", "standard", "full"])
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = make_data(arguments.batches)
    rows = [measure(case, data, arguments.rounds) for case in arguments.case]
    print("| case | lightloop / plain, CPU time | quartiles | plain, µs a batch | calls a batch, plain | lightloop |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        low, high = row["quartiles"]
        print(
            f"| {row['case']} | **{row['ratio']:.2f}** | {low:.2f}–{high:.2f} | {row['plain_us_per_batch']:.0f} "
            f"| {row['calls_plain']:.0f} | {row['calls_lightloop']:.0f} |"
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
