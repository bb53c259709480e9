"""A warning points at the user's line: the step that it is about, else the call that began the run."""

from __future__ import annotations

import threading
import warnings

import pytest

import lightloop

HEAD = """
import torch
from lightloop import Callback, Plugin, Trainer, hookimpl
from lightloop.toolkit import warn
from lightloop.testing import Probe, probe_batches

FEW = ["-*"]
"""
SCRIPTS = {
    "an old name of an option": "Trainer(FEW, train_percent_check=0.5)  # here",
    "an old name of an attribute": "Trainer().train_percent_check  # here",
    "a module in eval mode": "Trainer(FEW).fit(Probe().eval(), probe_batches(1))  # here",
    "no optimizer": """
class Idle(Probe):
    configure_optimizers = None

Trainer(FEW).fit(Idle(), probe_batches(1))  # here
""",
    "no loss": """
class Idle(Probe):
    def training_step(self, batch):
        return None

Trainer(FEW).fit(Idle(), probe_batches(1))  # here
""",
    "no data the second time": "Trainer(FEW, max_epochs=2).fit(Probe(), (each for each in probe_batches(2)))  # here",
    "weights for some": """
class Weighs(Probe):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch)
        return {"loss": loss, "weight": 2} if batch_idx else loss

Trainer(FEW, accumulate_grad_batches=2).fit(Weighs(), probe_batches(2))  # here
""",
    "a plugin that fails": """
class Fails(Plugin):
    name = "fails"
    on_failure = "disable"

    @hookimpl
    def after_batch(self, loop):
        raise ValueError("no")

Trainer([*FEW, Fails()]).fit(Probe(), probe_batches(1))  # here
""",
    "a plugin of the user's": """
class Says(Plugin):
    name = "says"

    @hookimpl
    def after_batch(self, loop):
        warn("look")  # here

Trainer([*FEW, Says()]).fit(Probe(), probe_batches(1))
""",
    "a callback with a misspelt event": """
class Odd(Callback):
    def on_trian_start(self, trainer, module):
        pass

Trainer(callbacks=[Odd()])  # here
""",
    "a window longer than the epoch": "Trainer(FEW, accumulate_grad_batches=4).fit(Probe(), probe_batches(2))  # here",
    "a loss that is not finite": """
Trainer(FEW, nonfinite="warn").fit(
    Probe(), [torch.tensor(float("inf"))]
)  # here -1
""",
    "a mode that is guessed": 'Trainer(FEW, early_stop_callback=True, early_stopping_mode="auto")  # here',
    "an average that begins too late": "Trainer(FEW, swa_start=5).fit(Probe(), probe_batches(1))  # here",
    "an example that does not fit": """
class Shown(Probe):
    example_input_array = torch.zeros(2)

Trainer(["-*", "model_summary"]).fit(Shown(), probe_batches(1))  # here
""",
    "an old argument": """
class Old(Probe):
    def training_step(self, batch, batch_nb):
        return super().training_step(batch)

Trainer(["-*", "old_names"]).fit(Old(), probe_batches(1))  # here
""",
    "an old name in a step": """
class Asks(Probe):
    def training_step(self, batch):
        user.batch_nb  # here
        return super().training_step(batch)

user = Trainer(["-*", "old_names"])
user.fit(Asks(), probe_batches(1))
""",
    "an old name in a callback": """
class Asks(Callback):
    def on_train_batch_end(self, trainer, module):
        trainer.training_tqdm_dict  # here

Trainer(["-*", "old_names"], callbacks=[Asks()]).fit(Probe(), probe_batches(1))
""",
}


def where(script, record):
    """The lines of ``record`` in ``script``, of which those are wanted that say "here"."""
    lines = [number for number, line in enumerate(script.splitlines(), 1) if "# here" in line]
    return {(one.filename, one.lineno) for one in record}, {("user.py", line) for line in lines}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_warning_points_at_the_users_line(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = HEAD + SCRIPTS[kind]
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        exec(compile(script, "user.py", "exec"), {"__name__": "__main__"})
    assert record
    found, wanted = where(script, record)
    if "# here -1" in script:  # a call over several lines is where Python says that it is
        assert {name for name, _ in found} == {"user.py"}
    else:
        assert found == wanted, [str(one.message) for one in record]


def test_the_line_is_found_from_another_thread_and_through_what_stands_between():
    script = """
import functools, threading
from lightloop.toolkit import warn

def work():
    thread = threading.Thread(target=functools.partial(library["say"], "asynchronous"))
    thread.start()
    thread.join()

work()
"""
    space = {"__name__": "lightloop_plugins.made_up", "warn": lightloop.toolkit.warn}
    exec(compile("def say(text): warn(text)", "made_up.py", "exec"), space)
    assert threading.current_thread() is threading.main_thread()
    with pytest.warns(UserWarning, match="asynchronous") as record:
        exec(compile(script, "user.py", "exec"), {"__name__": "__main__", "library": space})
    assert (record[0].filename, record[0].lineno) in (("user.py", 7), ("user.py", 8))  # where the program waits for it


def test_a_package_of_the_users_own_points_at_who_called_it():
    space = {"__name__": "theirs.plugin", "warn": lightloop.toolkit.warn}
    exec(compile("def say():\n    warn('theirs')\ndef outer():\n    say()", "theirs.py", "exec"), space)
    with pytest.warns(UserWarning, match="theirs") as record:
        exec(compile("\nouter()", "user.py", "exec"), {"__name__": "__main__", "outer": space["outer"]})
    assert (record[0].filename, record[0].lineno) == ("user.py", 2)
