"""``lightloop verify-resume``: whether a run that is killed and gone on with is the same to the bit as one that is not."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

from lightloop.cli.front import Parser, UsageError
from lightloop.cli.options import joined, read_options
from lightloop_plugins.checkpoint.commands.compare import Difference, of_states
from lightloop_plugins.checkpoint.commands.runs import Runs, run_folder
from lightloop_plugins.checkpoint.commands.traces import first_difference, rows_that_differ
from lightloop_plugins.checkpoint.errors import CheckpointError

REASONS = {
    "data": "the loader gives other batches after a resume: its sampler or dataset draws from something that is in no "
    "checkpoint. Give Trainer(seed=...), use lightloop_plugins.resumable.ResumableLoader, or give the loader state_dict and "
    "load_state_dict",
    "random": "something draws random numbers while a run is resumed, or does not while one begins. Give it a generator of "
    "its own, as an attribute of the module",
    "loss": "the step depends on something that is in no checkpoint, such as a plain attribute of the module (make it a buffer, "
    "or give get_extra_state and set_extra_state), a global, a file, the clock; or its kernels are not deterministic",
    "module": "the weights are changed by something whose own state is in no checkpoint, such as a callback or hook: give it "
    "state_dict and load_state_dict",
    "optimizers": "the optimizer keeps something outside of its state_dict()",
    "schedulers": "the scheduler keeps something outside of its state_dict(), as LambdaLR does with its functions",
    "plugins": "this plugin does not take back in load_state_dict all that it needs, or sets it anew in before_fit",
    "hparams": "the module changes its hyperparameters while it is trained, or sets others each time",
    "metrics": "the metric depends on something that is in no checkpoint; one that measures time or the machine is left out "
    "by --ignore",
    "": "it is counted or kept by something that is in no checkpoint",
}
"""What is probable where the first difference is in a state of that name."""
METRIC = re.compile(r"ranks\.\d+\.metrics\.\w+\.([^.]+)")
"""The path of a metric's values in a state."""


def verify_resume(arguments: list[str]) -> int:
    """Run what lightloop fit runs, once whole and once killed and resumed, and compare all bits; 1 where they differ."""
    parser = Parser("verify-resume", verify_resume)
    parser.add_argument("--at", metavar="N,...", help="kill the run after so many batches, and again after so many; by "
        "default once, in the middle of the first epoch")  # fmt: skip
    parser.add_argument("--ignore", action="append", default=[], metavar="PATTERN", help="a metric or a state that need not "
        "be the same, such as one that measures time; may be given again")  # fmt: skip
    parser.add_argument("--keep", metavar="FOLDER", help="where the runs are made and stay; it must be empty")
    parser.epilog = (
        "Then as for lightloop fit: --config FILE, --module MODULE:CLASS, --OPTION VALUE. The run is made to its end twice,\n"
        "so that it should be short: --max_epochs 2, --limit_train_batches 10."
    )
    said, rest = parser.parse_known_args(arguments)
    words = joined(rest, "--plugins")
    _, options = read_options(words)
    if options.get("seed") is None:
        words.append("--seed=0")
    with run_folder(said.keep) as folder:
        return _verify(Runs(folder, words, _places(said.at)), said.ignore)


def _verify(runs: Runs, ignore: list[str]) -> int:
    try:
        return _report(runs, *_compare(runs, ignore))
    except CheckpointError as error:
        print(f"lightloop verify-resume: {error}", file=sys.stderr)
        return 1


def _compare(runs: Runs, ignore: list[str]) -> tuple[str | None, str, list[str]]:
    """What differs first, why that is likely, and notes."""
    runs.live("whole")
    whole = runs.trace("whole")
    end = whole[0].end or 0
    runs.places = runs.places or whole[0].saved[:1]
    if not runs.places or runs.places[-1] >= end:
        raise UsageError(f"the run has {end} batches: it can be killed after 1 to {end - 1} of them, with --at")
    print(f"run 1: whole, {end} batches", flush=True)
    for path in runs.folder.glob("*/run"):
        path.rename(path.with_name("whole"))
    runs.live("parts", kill=runs.places[0])
    print(f"run 2: killed after batch {runs.places[0]}", flush=True)
    unsteady = list(dict.fromkeys(_unsteady(runs, ignore)))
    ignore = [*ignore, *unsteady]
    for place in runs.places[1:]:
        runs.live("parts", kill=place, resume=True)
        print(f"       resumed, killed after batch {place}", flush=True)
    runs.live("parts", resume=True)
    print("       resumed, to its end", flush=True)
    notes = [f"not compared, for two runs of one seed differ in it anyway: {name}" for name in unsteady]
    first, reason = _first(runs, ignore)
    return first, reason, notes


def _unsteady(runs: Runs, ignore: Iterable[str]) -> Iterator[str]:
    """What differs between two runs before any of them was resumed: metrics and states that measure time, at best.

    Raises:
        CheckpointError: if it is the training itself.
    """
    for whole, parts in zip(runs.trace("whole"), runs.trace("parts"), strict=True):
        if found := first_difference(whole, parts, runs.places[0]):
            raise CheckpointError(
                f"two runs of one seed differ already before one is resumed, first in {found}. Until they do not, a resumed run "
                "cannot be the same: look for kernels that are not deterministic (torch.use_deterministic_algorithms), "
                "random numbers from the system, the clock, the order of a set"
            )
        yield from (name for name, _ in rows_that_differ(whole, parts, whole.rows_until(runs.places[0])) if name)
    (one,) = (place for place, manifest in runs.saved("whole") if manifest.batch == runs.places[0])
    (other,) = (place for place, manifest in runs.saved("run") if manifest.batch == runs.places[0])
    for each in _kept(of_states(one, other), ignore):
        metric = METRIC.match(each.path)
        if metric is None and not each.path.startswith("plugins."):
            raise CheckpointError(f"two runs of one seed differ already before one is resumed, first in {each}")
        yield metric[1] if metric else each.path


def _first(runs: Runs, ignore: list[str]) -> tuple[str | None, str]:
    for whole, parts in zip(runs.trace("whole"), runs.trace("parts"), strict=True):
        if found := first_difference(whole, parts):
            return f"{found}", REASONS[found.field]
    for whole, parts in zip(runs.trace("whole"), runs.trace("parts"), strict=True):
        for name, where in rows_that_differ(whole, parts):
            if not any(fnmatch(name, pattern) for pattern in ignore):
                return where, REASONS["metrics"]
    last = [runs.saved(name)[-1][0] for name in ("whole", "run")]
    for each in _kept(of_states(*last), ignore):
        name = each.path.split(".")[2 if each.path.startswith("ranks.") else 0]
        return f"{each}, at the end", REASONS.get(name, REASONS[""])
    return None, ""


def _kept(differences: Iterable[Difference], ignore: Iterable[str]) -> Iterator[Difference]:
    for each in differences:
        metric = METRIC.match(each.path)
        names = [each.path, *([metric[1]] if metric else [])]
        if not any(fnmatch(name, pattern) for name in names for pattern in ignore):
            yield each


def _report(runs: Runs, first: str | None, reason: str, notes: list[str]) -> int:
    print("\n".join(notes), end="\n" if notes else "")
    if first is None:
        (trace, *_) = runs.trace("whole")
        print(
            f"the same to the bit: {len(trace.batches)} batches, {len(trace.rows)} rows of metrics, and the state at the end"
        )
        return 0
    print(f"differs first: {first}\nprobably: {reason}")
    log = (runs.folder / f"{runs.lives}-parts.log").read_text(errors="replace")
    warned = dict.fromkeys(re.findall(r"^.*?\w*Warning: (.+)$", log, flags=re.MULTILINE))
    print("".join(f"the resumed run warned: {each}\n" for each in warned), end="")
    return 1


def _places(text: str | None) -> list[int]:
    try:
        places = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        places = [0]
    if sorted(set(places)) != places or any(place < 1 for place in places):
        raise UsageError(f"--at must be numbers of batches from 1, in rising order, such as 5,12; it is {text!r}")
    return places
