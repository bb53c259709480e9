"""Faulty plugins fail the contract, each for its own fault and for nothing else."""

import fcntl
import os
import re
import subprocess
import sys

import pytest

PLUGINS = """
import json, random, signal, threading
import torch
from lightloop import Plugin, hookimpl, option

class Good(Plugin):
    '''Does nothing wrong.'''
    name = "good"
    state = ("count",)
    size: int = option(1, "How much.")
    def validate(self):
        self.count = 0
    @hookimpl
    def after_batch(self, loop):
        self.count += 1
    def state_dict(self):
        return {"count": self.count}
    def load_state_dict(self, state):
        self.count = state["count"]

class Misnamed(Good):
    '''Its entry point has another name.'''
    name = "misnamed"

class Silent(Good):
    '''Has an option of which nobody knows what it is.'''
    name = "silent"
    mode: int = option(1, "")

class Undocumented(Good):
    name = "undocumented"

class Crashes(Good):
    '''Fails in the second batch.'''
    name = "crashes"
    @hookimpl
    def before_batch(self, loop):
        if loop.batch_idx == 1:
            raise RuntimeError("crashed")

class Forgets(Good):
    '''Keeps a state that it does not take back.'''
    name = "forgets"
    def load_state_dict(self, state):
        pass

class Loses(Good):
    '''Takes back its count between two epochs, and not inside one.'''
    name = "loses"
    transient = ("since",)
    disturbs = ("gradients", "parameters")
    def reset(self):
        self.since = 0
    @hookimpl
    def before_epoch(self, loop):
        self.since = 0
    @hookimpl
    def before_step(self, loop):
        self.since += 1
        torch._foreach_mul_(loop.gradients, 1.0 / self.since)

class Objects(Good):
    '''Keeps an object in its state.'''
    name = "objects"
    def state_dict(self):
        return {"what": {1, 2}}
    def load_state_dict(self, state):
        pass

class Draws(Good):
    '''Draws a random number.'''
    name = "draws"
    @hookimpl
    def after_batch(self, loop):
        random.random()

class Evals(Good):
    '''Trains in eval mode.'''
    name = "evals"
    @hookimpl
    def before_epoch(self, loop):
        loop.module.eval()

class Doubles(Good):
    '''Doubles the gradients.'''
    name = "doubles"
    @hookimpl
    def before_step(self, loop):
        torch._foreach_mul_(loop.gradients, 2.0)

class Moves(Good):
    '''Moves the parameters.'''
    name = "moves"
    @hookimpl
    def after_fit(self, loop):
        with torch.no_grad():
            for parameter in loop.module.parameters():
                parameter.add_(1.0)

class Reads(Good):
    '''Reads the loss in each batch.'''
    name = "reads"
    @hookimpl
    def after_batch(self, loop):
        self.count += 1
        loop.loss.item()

class Lambda(Good):
    '''Keeps a function without a name.'''
    name = "lambda"
    transient = ("scale",)
    def validate(self):
        super().validate()
        self.scale = lambda x: x

class LambdaLater(Good):
    '''Keeps one after a run.'''
    name = "lambda_later"
    transient = ("scale",)
    @hookimpl
    def before_fit(self, loop):
        self.scale = lambda x: x

class Undeclared(Good):
    '''Does not say what its attribute is.'''
    name = "undeclared"
    def validate(self):
        super().validate()
        self.since = 0

class Handler(Good):
    '''Leaves a signal handler.'''
    name = "handler"
    @hookimpl
    def before_fit(self, loop):
        signal.signal(signal.SIGTERM, print)

class Thread(Good):
    '''Leaves a thread.'''
    name = "thread"
    @hookimpl
    def before_fit(self, loop):
        threading.Thread(target=threading.Event().wait, daemon=True).start()

class Hook(Good):
    '''Leaves a hook on the module.'''
    name = "hook"
    @hookimpl
    def before_fit(self, loop):
        loop.module.register_forward_hook(print_nothing)

class File(Good):
    '''Leaves a file open.'''
    name = "file"
    @hookimpl
    def before_fit(self, loop):
        opened.append(open(__file__))

class Apart(Good):
    '''Lets the ranks come apart.'''
    name = "apart"
    @hookimpl
    def teardown(self, loop):
        if loop.world.rank:
            with torch.no_grad():
                for parameter in loop.module.parameters():
                    parameter.add_(1.0)

class Counts(Good):
    '''Sets a counter of the loop.'''
    name = "counts"
    @hookimpl
    def after_batch(self, loop):
        self.count += 1
        loop.global_step += 1

class Dtype(Good):
    '''Leaves another default type of numbers.'''
    name = "dtype"
    @hookimpl
    def after_fit(self, loop):
        if loop.status == "finished":
            torch.set_default_dtype(torch.float64)

class Graphs(Good):
    '''Keeps what it was given, with its graph.'''
    name = "graphs"
    transient = ("kept",)
    def reset(self):
        self.kept = []
    @hookimpl
    def after_forward(self, loop):
        self.kept.append(loop.loss)
    @hookimpl
    def teardown(self, loop):
        self.reset()

class Unmarked(Good):
    '''Has a method with the name of a hook.'''
    name = "unmarked"
    def before_step(self, trainer):
        pass

class Nearly(Good):
    '''Has a method with nearly the name of a hook.'''
    name = "nearly"
    def before_stp(self, loop):
        pass

class NoReturn(Good):
    '''Forgets to return the answer.'''
    name = "no_return"
    @hookimpl(wrapper=True)
    def step(self, loop):
        yield

class Yields(Good):
    '''Answers with a generator.'''
    name = "yields"
    @hookimpl
    def step(self, loop):
        yield True

class Wrong(Good):
    '''Answers with a number.'''
    name = "wrong"
    @hookimpl
    def hold_step(self, loop):
        return 0

opened = []
def print_nothing(*arguments):
    return None
"""
NEEDY = """
import yaml
from lightloop import Plugin

class Needy(Plugin):
    '''Imports what its distribution does not require.'''
    name = "needy"
"""
CONTRACTS = """
import sys
from lightloop.testing import PluginContract
for name in sys.modules["os"].environ["FAULTS"].split():
    attributes = {"plugin": name, "processes": 2 if name in ("good", "apart") else 1, "__module__": __name__}
    if name not in ("good", "loses"):
        attributes["boundaries"] = 0
    globals()["Test_" + name] = type("Test_" + name, (PluginContract,), attributes)
from faulty import Misnamed
class Test_misnamed(PluginContract):
    plugin = Misnamed
    processes = 1
    boundaries = 0
"""
NAMES = re.findall(r'name = "(\w+)"', PLUGINS + NEEDY)
STATE = "test_its_state_goes_through_state_dict"
RESUMED = "test_a_run_that_is_gone_on_with_is_the_run_that_was_not_stopped"
KILLED = "test_a_run_that_is_killed_between_two_batches_is_the_run_that_was_not_stopped"
DISTURBS = "test_it_disturbs_nothing_that_it_does_not_declare"
SURVIVES = "test_it_survives_a_fit_of_two_batches"
MARKED = "test_its_hooks_are_called_as_its_author_thinks"
LEAVES = "test_it_leaves_nothing_behind_after_an_error"
FAULTS = {
    "good": {},
    "misnamed": {"test_its_name_is_that_of_its_entry_point": "the plugin's name is 'misnamed', and the entry points"},
    "silent": {"test_every_option_has_help": "these options have no help that is a sentence: silent_mode"},
    "undocumented": {"test_it_says_what_it_is_for": "Undocumented has no docstring of its own"},
    "forgets": {
        STATE: "load_state_dict(state) and then state_dict() must give the state again",
        RESUMED: "the state of",
    },
    "loses": {KILLED: "a resumed run differs, killed after batch 1 (epoch 0): module."},
    "objects": {STATE: "state_dict has what is no plain data: state['what'] is set"},
    "draws": {DISTURBS: "random"},
    "evals": {DISTURBS: "modes", LEAVES: "modes"},
    "doubles": {DISTURBS: "gradients, parameters"},
    "moves": {DISTURBS: "parameters"},
    "reads": {"test_it_waits_for_no_device_in_each_batch": "item in after_batch by plugin 'reads'"},
    "undeclared": {
        "test_it_declares_what_each_of_its_attributes_is": "and it does not say what they are: since",
    },
    "lambda": {"test_it_pickles": "configured it cannot be pickled, for scale"},
    "lambda_later": {"test_it_pickles": "after a run it cannot be pickled, for scale"},
    "handler": {LEAVES: "signal handlers", SURVIVES: ""},
    "thread": {LEAVES: "threads", SURVIVES: ""},
    "hook": {LEAVES: "hooks of the module", SURVIVES: ""},
    "file": {LEAVES: "open files", SURVIVES: ""},
    "apart": {"test_it_runs_in_several_processes": "the ranks have come to different weights"},
    "counts": {SURVIVES: "loop.global_step is 4, and 2 were counted"},
    "dtype": {SURVIVES: "settings of torch"},
    "graphs": {SURVIVES: "the first loss of the epoch is still there with its graph"},
    "unmarked": {MARKED: "'before_step' has the name of a hook, is not marked as one and is never called"},
    "nearly": {MARKED: "'before_stp' differs by a letter from the hook 'before_step'"},
    "needy": {"test_it_imports_without_optional_packages": "'yaml' is hidden"},
}

SPREADS = ("counts", "dtype", "graphs")
"""Their faults reach what comes after a run, and so other tests as well."""
CANNOT_RUN = {
    "crashes": "RuntimeError: crashed",
    "no_return": "hook 'step' is a wrapper that returns nothing, so that the answer is lost",
    "yields": "hook 'step' is a generator and would never run",
    "wrong": "answered 'hold_step' with 0 (int); it must return bool",
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """What each plugin fails, and why; the processes of pytest-xdist share one run."""
    top = tmp_path_factory.getbasetemp()
    output = (top.parent if "PYTEST_XDIST_WORKER" in os.environ else top) / "faulty.out"
    with open(f"{output}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            output.write_text(contracts_of_all(tmp_path_factory.mktemp("faulty")))
    found = {}
    for name, test, why in re.findall(
        r"^FAILED \S+::Test_(\w+)::(\w+)(?: - (.*))?$", output.read_text(), flags=re.MULTILINE
    ):
        found.setdefault(name, {})[test] = why
    assert found, output.read_text()
    return found, output.read_text()


def contracts_of_all(folder):
    """What pytest prints of the contracts of all of them, which are installed in ``folder``."""
    (folder / "faulty.py").write_text(PLUGINS)
    (folder / "needy.py").write_text(NEEDY)
    (folder / "test_faulty_contracts.py").write_text(CONTRACTS)
    info = folder / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\nRequires-Dist: lightloop\n")
    (info / "top_level.txt").write_text("faulty\nneedy\n")
    (info / "RECORD").write_text("faulty.py,,\nneedy.py,,\n")
    classes = dict(zip(NAMES, re.findall(r"^class (\w+)", PLUGINS + NEEDY, flags=re.MULTILINE), strict=True))
    lines = [
        f"{'other' if name == 'misnamed' else name} = {'needy' if name == 'needy' else 'faulty'}:{kind}"
        for name, kind in classes.items()
    ]
    (info / "entry_points.txt").write_text("[lightloop.plugins]\n" + "\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "-c", os.devnull, "--rootdir=."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "FAULTS": " ".join(set(FAULTS) - {"misnamed"} | set(CANNOT_RUN))},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("name", FAULTS)
def test_each_fails_for_its_own_fault(failures, name):
    found, output = failures
    if name in SPREADS:
        assert set(found.get(name, {})) >= set(FAULTS[name]), output
    else:
        assert set(found.get(name, {})) == set(FAULTS[name]), output
    for why in FAULTS[name].values():
        assert why in output


@pytest.mark.processes
@pytest.mark.parametrize("name", CANNOT_RUN)
def test_one_that_cannot_be_run_fails_whatever_needs_a_run(failures, name):
    found, output = failures
    assert SURVIVES in found[name], output
    assert CANNOT_RUN[name] in output
