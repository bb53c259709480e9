"""The loop on the first page is the loop that runs."""

from __future__ import annotations

import re
from pathlib import Path

from lightloop import Hooks, Trainer
from lightloop.testing import Recorder, TinyClassifier, classification_batches

PAGE = Path(__file__).parents[2] / "docs" / "index.md"
HOOKS = [name for name, spec in vars(Hooks).items() if hasattr(spec, "lightloop_spec")]
LOOP = re.search(r"```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[1]


def shown():
    """The hooks on the page, each where it comes first; what is behind # is explanation."""
    words = [word for line in LOOP.splitlines() for word in re.findall(r"\w+", line.partition("#")[0])]
    return list(dict.fromkeys(word for word in words if word in HOOKS))


def test_every_hook_is_on_the_page_in_the_order_of_the_specifications():
    assert shown() == HOOKS


def test_a_run_meets_them_in_the_order_of_the_page(tmp_path):
    recorder = Recorder()
    data = classification_batches(batches=2)
    module = TinyClassifier()
    Trainer(["-*", "validation", recorder], num_sanity_val_steps=0, val_check_interval=1, gradient_clip_val=1.0).fit(
        module, data, data
    )
    events = recorder.events[recorder.events.index("before_fit") :]
    begin = recorder.events[: recorder.events.index("before_fit")]
    assert list(dict.fromkeys(begin)) == ["setup", "prepare_loader", "configure_optimizers", "zero_grad"]
    met = [name for name in dict.fromkeys(events) if name != "prepare_loader"]  # the validation data is asked for late
    inside = ["before_evaluation", "before_evaluation_batch", "evaluate_batch", "after_evaluation_batch"]
    inside += ["after_evaluation_batches", "after_evaluation"]
    assert [name for name in met if name in inside] == inside
    train = [name for name in met if name not in inside]
    assert train == [name for name in shown() if name in train]
    assert {"move_batch", "forward", "step", "after_step", "zero_grad", "after_epoch", "teardown"} <= set(train)
