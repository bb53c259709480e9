"""What accumulation costs in two processes: Lightloop with ``strategy="ddp"`` beside DistributedDataParallel by hand.

    python benchmarks/processes.py [--rounds 12] [--batches 1000] [--json FILE]

Both over gloo, in the same two processes, in turn, with the network of loop.py on data of each process's own. A window is 4
batches; by hand, ``no_sync`` is around those that do not end one. Both must end with bit-equal weights. Reductions of
gradients are counted by torch's profiler. The ranks of Lightloop also agree whether to stop after each batch, which is a
message of 64 bytes; the loop by hand cannot be stopped.
"""

import argparse
import json
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from loop import ACCUMULATE, Net, Timed, make_data, make_net, make_optimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from lightloop import Trainer
from lightloop.testing.ranks import run_ranks, values_of


def by_hand(data):
    net = make_net("bare")
    parallel = DistributedDataParallel(net)
    optimizer = make_optimizer(net.parameters())
    for index, (inputs, labels) in enumerate(data):
        ends = (index + 1) % ACCUMULATE == 0
        with nullcontext() if ends else parallel.no_sync():
            (F.cross_entropy(parallel(inputs), labels) / ACCUMULATE).backward()
        if ends:
            optimizer.step()
            optimizer.zero_grad()
    return net


def lightloop(data):
    module = Net("bare")
    Trainer(["-*", "ddp"], accumulate_grad_batches=ACCUMULATE, strategy="ddp").fit(module, data)
    return module.net


def reductions(train, data):
    """How many times per window the gradients of all parameters are brought together."""
    size = sum(parameter.numel() for parameter in make_net("bare").parameters())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        train(data)
    made = sum(event.name == "gloo:all_reduce" and event.input_shapes == [[size]] for event in profiler.events())
    return made / (len(data) // ACCUMULATE)


def rank(rounds, batches):
    """Of each round the microseconds of CPU per batch and the seconds on the wall, by hand and by Lightloop."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = make_data(batches, seed=dist.get_rank())
    found = []
    for _ in range(rounds + 1):
        row, nets = [], []
        for train in (by_hand, lightloop):
            timed = Timed(data)
            dist.barrier()
            begin = time.perf_counter()
            nets.append(train(timed))
            row.append((timed.microseconds, time.perf_counter() - begin))
        for one, other in zip(*(net.parameters() for net in nets), strict=True):
            assert torch.equal(one, other)
        found.append(row)
    counted = [reductions(train, data[:80]) for train in (by_hand, lightloop)]
    dist.destroy_process_group()
    return found[1:], counted  # the first warms up


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    answers = values_of(run_ranks(rank, 2, arguments.rounds, arguments.batches, timeout=3600.0))
    figures = {}
    for index, clock in enumerate(("CPU time", "time on the wall")):
        ratios = [ours[index] / hand[index] for rounds, _ in answers for hand, ours in rounds]
        low, middle, high = (round(each, 3) for each in statistics.quantiles(ratios, n=4))
        figures[f"{clock}, × by hand"] = {"ratio": middle, "quartiles": [low, high]}
    pairs = [pair for rounds, _ in answers for pair in rounds]
    added = statistics.median(ours[0] - hand[0] for hand, ours in pairs)
    figures["CPU time of a batch, µs"] = {
        "by hand": round(statistics.median(hand[0] for hand, _ in pairs)),
        "more in lightloop": round(added),
    }
    _, (hand, ours) = answers[0]
    figures["reductions of gradients in a window"] = {"by hand": hand, "lightloop": ours}
    print("| two processes, accumulate 4 | |\n|---|---|")
    for name, figure in figures.items():
        print(f"| {name} | " + ", ".join(f"{key} {value}" for key, value in figure.items()) + " |")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
