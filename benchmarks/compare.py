"""Lightloop beside the libraries that people use: CPU time per batch as a multiple of the plain hand-written loop.

    python benchmarks/compare.py [--rounds 12] [--quick] [--python OTHER/bin/python] [--json FILE]

The cases are those of loop.py. Each library has a process of its own; rounds are interleaved, each ratio is to the plain
loop of the same round, and what counts is the median. All must end with the same number of steps and the same weights:
Lightloop to the bit, the rest within a thousandth of the way that the weights have gone. The libraries to compare with must
be installed in the interpreter that --python names, together with this one; those that are not there are left out.
`make bench` builds an environment that has all of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from loop import CASES, batches, make_net

NAMES = {
    "plain": "a plain loop",
    "tuned": "the same, tuned by hand, fused",
    "lightloop": "**Lightloop**",
    "lightloop, fused": "**Lightloop**, `fused_optimizer=True`",
    "ignite": "Ignite",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "transformers": "Hugging Face Trainer",
}
NEEDS = {name: name for name in ("accelerate", "lightning", "transformers")} | {"ignite": "pytorch-ignite"}
VERSIONS = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Worker:
    """A process that trains with one library whenever it is asked to."""

    def __init__(self, python, name, folder):
        self.errors, self.weights = folder / f"{name}.txt", folder / f"{name}.pt"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [python, str(Path(__file__).with_name("frameworks.py")), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, case, count):
        """Microseconds per batch, how many steps were made, and the weights at the end."""
        asked = {"case": case, "batches": count, "weights": str(self.weights)}
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        except ValueError:
            status = self.process.wait()
            raise SystemExit(f"{self.process.args} ended with status {status}:\n{self.errors.read_text()}") from None
        except BrokenPipeError:
            raise SystemExit(f"{self.process.args} has ended:\n{self.errors.read_text()}") from None
        return answer["microseconds"], answer["steps"], flat(torch.load(self.weights))


def flat(parameters):
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def check_same(case, name, steps, weights, plain_steps, plain_weights):
    """Refuse to compare what has not trained the same: Lightloop must be equal to the plain loop, and the rest nearly."""
    if steps != plain_steps:
        raise AssertionError(f"{case}: {name} made {steps} steps, and the plain loop {plain_steps}")
    way = (plain_weights - flat(make_net(case).parameters())).norm()
    apart = ((weights - plain_weights).norm() / way).item()
    if not apart <= (0.0 if name == "lightloop" else 1e-3):
        raise AssertionError(f"{case}: the weights of {name} are {apart:.2g} of their way from those of the plain loop")


def measure(workers, case, rounds, of_small):
    """For each library its ratios to the plain loop, and the microseconds of a batch of the plain loop."""
    ratios, plain = {name: [] for name in workers}, []
    for number in range(rounds + 1):  # the first warms up
        count = batches(case, of_small if number else min(of_small, 200))
        turn = number % len(workers)  # each is the first one at times
        order = [*workers, *workers][turn : turn + len(workers)]
        found = {name: workers[name].run(case, count) for name in order}
        base, steps, weights = found["plain"]
        for name, (microseconds, its_steps, its_weights) in found.items():
            check_same(case, name, its_steps, its_weights, steps, weights)
            ratios[name].append(microseconds / base)
        plain.append(base)
    return {name: summary(each[1:]) for name, each in ratios.items()}, round(statistics.median(plain[1:]), 1)


def summary(ratios):
    low, _, high = statistics.quantiles(ratios, n=4)
    return {"ratio": round(statistics.median(ratios), 3), "quartiles": [round(low, 3), round(high, 3)]}


def table(cases):
    """The figures in Markdown."""
    yield "| × the plain loop, CPU time: median (quartiles) | " + " | ".join(cases) + " |"
    yield "|---|" + "---|" * len(cases)
    for name in next(iter(cases.values())):
        rows = (of[name] for of in cases.values())
        cells = (f"{row['ratio']:.2f} ({row['quartiles'][0]:.2f}–{row['quartiles'][1]:.2f})" for row in rows)
        yield f"| {NAMES[name]} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--case", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 600 batches: under two minutes")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the libraries")
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.batches = 3, 600
    asked = [arguments.python, "-c", VERSIONS, "torch", "lightloop", *NEEDS.values()]
    versions = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    names = [name for name in NAMES if NEEDS.get(name, "torch") in versions]
    cases, plain = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        workers = {name: Worker(arguments.python, name, Path(folder)) for name in names}
        for case in arguments.case:
            cases[case], plain[case] = measure(workers, case, arguments.rounds, arguments.batches)
        for worker in workers.values():
            worker.process.communicate()
    print("\n".join(table(cases)))
    print(
        f"\n{arguments.rounds} rounds of {arguments.batches} batches. A batch of the plain loop took, in µs, ", end=""
    )
    print(", ".join(f"{plain[case]:.0f} ({case})" for case in cases), end=".\n")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    if arguments.json:
        figures = {"versions": versions, "rounds": arguments.rounds, "batches": arguments.batches}
        figures |= {"plain_us_per_batch": plain, "cases": cases}
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
