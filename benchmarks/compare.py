"""Lightloop beside the frameworks that people use: CPU time per batch as a multiple of the plain hand-written loop.

    python benchmarks/compare.py [--rounds 12] [--quick] [--python OTHER/bin/python] [--json FILE]

Each framework has a process of its own; rounds are interleaved, each ratio is to the plain loop of the same round, and
what counts is the median. The clock runs from the 100th batch to the last. All must end with the same number of steps and
the same weights, Lightloop to the bit and the rest to 1e-3. The frameworks to compare with (lightning, pytorch-ignite,
accelerate, transformers) must be installed in the interpreter that --python names, together with this library; those
that are not there are left out.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path

NEEDS = {"ignite": "ignite", "accelerate": "accelerate", "lightning": "lightning", "transformers": "transformers"}
CASES = ("bare", "standard", "full", "saving")


class Worker:
    """A process that trains with one framework whenever it is asked to."""

    def __init__(self, python, framework):
        script = Path(__file__).with_name("frameworks.py")
        self.process = subprocess.Popen(
            [python, str(script), framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, case, batches):
        self.process.stdin.write(json.dumps({"case": case, "batches": batches}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended with status {self.process.wait()}")
        return json.loads(answer)


def installed(python, framework):
    if framework not in NEEDS:
        return True
    check = f"import importlib.util as u; raise SystemExit(u.find_spec({NEEDS[framework]!r}) is None)"
    if python == sys.executable:
        return importlib.util.find_spec(NEEDS[framework]) is not None
    return subprocess.run([python, "-c", check], check=False).returncode == 0


def measure(workers, case, rounds, batches):
    times = {name: [] for name in workers}
    for round_ in range(rounds + 1):
        answers = {name: worker.run(case, batches) for name, worker in workers.items()}
        base = answers["plain"]
        for name, answer in answers.items():
            assert answer["steps"] == base["steps"], (case, name, answer, base)
            tolerance = 0.0 if name == "lightloop" else 1e-3 * base["norm"]
            assert abs(answer["norm"] - base["norm"]) <= tolerance, (case, name, answer, base)
            if round_:  # the first warms up
                times[name].append(answer["seconds"] / base["seconds"])
    rows = {}
    for name, ratios in times.items():
        low, _, high = statistics.quantiles(ratios, n=4)
        rows[name] = {"ratio": round(statistics.median(ratios), 3), "quartiles": [round(low, 3), round(high, 3)]}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1,000 batches: under two minutes")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the frameworks")
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.batches = 3, 1000
    names = [
        "plain",
        "tuned",
        "lightloop",
        "lightloop, fused",
        *(name for name in NEEDS if installed(arguments.python, name)),
    ]
    workers = {name: Worker(arguments.python, name) for name in names}
    table = {case: measure(workers, case, arguments.rounds, arguments.batches) for case in CASES}
    print("| x the plain loop, CPU time | " + " | ".join(CASES) + " |")
    print("|---|" + "---|" * len(CASES))
    for name in names:
        cells = (
            f"{row['ratio']:.2f} ({row['quartiles'][0]:.2f}–{row['quartiles'][1]:.2f})"
            for row in (table[case][name] for case in CASES)
        )
        print(f"| {name} | " + " | ".join(cells) + " |")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
