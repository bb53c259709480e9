"""Leave out any single state, and the run that goes on is another one: so every one of them is tested to be there."""

from collections.abc import Mapping

import pytest
import torch

from lightloop import Plugin, hookimpl
from lightloop_plugins.checkpoint import plugin as checkpoint
from tests.checkpoint.rig import LOADERS, Net, outcome, stop, train


class Rows(Plugin):
    """Keeps what loggers are given."""

    name = "rows_for_test"

    def validate(self):
        self.rows = []

    @hookimpl
    def log_metrics(self, metrics, step):
        self.rows.append((step, {name: value for name, value in metrics.items() if "time" not in name}))


class Freezing(Net):
    """Freezes its head, and takes a part to eval mode, in the first epoch, once."""

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 0 and batch_idx == 1:
            self.head.bias.requires_grad_(False)
            self.head.bias.grad = None
            self.body[3].eval()
            self.log("once", 1.5)
        loss = super().training_step(batch, batch_idx)
        self.log("by_step", loss)
        return loss


def change(*path):
    """A change of the part at ``path`` of the tree; what is to be there instead comes last."""
    *where, last, value = path

    def apply(tree):
        for step in where:
            tree = tree[step]
        tree[last] = value(tree[last]) if callable(value) else value

    return apply


def zeros(tensors):
    return {name: torch.zeros_like(value) for name, value in tensors.items()}


def flipped(flags):
    return {name: not value for name, value in flags.items()}


def without_states(optimizers):
    return [{**each, "state": {**each["state"], "state": {}}} for each in optimizers]


def first_rates(optimizers):
    groups = [[{**group, "lr": 0.02} for group in each["state"]["param_groups"]] for each in optimizers]
    return [
        {**each, "state": {**each["state"], "param_groups": its}} for each, its in zip(optimizers, groups, strict=True)
    ]


def from_another_seed(state):
    return torch.Generator().manual_seed(5).get_state() if isinstance(state, torch.Tensor) else state


def forget(state):
    """The same form, with nothing counted."""
    if isinstance(state, Mapping):
        return {name: forget(part) for name, part in state.items()}
    return 0 if isinstance(state, int) and not isinstance(state, bool) else state


RANK = ("ranks", 0)
MUTATIONS = {
    "parameters": change("module", "parameters", zeros),
    "buffers": change("module", "buffers", lambda buffers: {**zeros(buffers), "seen": buffers["seen"]}),
    "non-persistent buffer": change("module", "buffers", "seen", torch.zeros(())),
    "requires_grad": change("module", "requires_grad", "head.bias", True),
    "modes": change("module", "training", "body.3", True),
    "extra state": change("module", "extra", "", {"calls": 0}),
    "torch generator": change("module", "generators", lambda states: {"own": states["own"]}),
    "python generator": change("module", "generators", lambda states: {"generator": states["generator"]}),
    "optimizer state": change("optimizers", without_states),
    "learning rates": change("optimizers", first_rates),
    "scheduler": change("schedulers", 0, "state", "last_epoch", 0),
    "plateau": change("schedulers", 1, "state", "best", 1e-9),
    "epoch": change("counters", "epoch", 0),
    "batch": change("counters", "batch_idx", 1),
    "total batches": change("counters", "total_batches", 0),
    "total pieces": change("counters", "total_pieces", 0),
    "global step": change("counters", "global_step", 0),
    "optimizer steps": change("counters", "optimizer_steps", [0]),
    "window batches": change(*RANK, "windows", 0, "batches", 0),
    "window contributions": change(*RANK, "windows", 0, "contributions", 0),
    "window weight": change(*RANK, "windows", 0, "weight", 0),
    "window plan": change(*RANK, "windows", 0, "planned", 1),
    "gradients": change(*RANK, "gradients", {}),
    "metrics of the step": change(*RANK, "metrics", "step", {}),
    "metrics of the epoch": change(*RANK, "metrics", "epoch", {}),
    "latest metrics": change(*RANK, "metrics", "latest", {}),
    "updates of metrics": change(*RANK, "metrics", "updates", {}),
    "order of the epoch": change(*RANK, "loader", "start", None),
    "python random": change(*RANK, "random", "python", 1, lambda numbers: numbers.roll(1)),
    "numpy random": change(*RANK, "random", "numpy", 1, lambda numbers: numbers.roll(1)),
    "torch random": change(*RANK, "random", "torch", from_another_seed),
    "early stopping": change("plugins", "early_stopping:val", "state", "wait_count", 0),
    "rhythm of validation": change("plugins", "validation", "state", forget),
}
OPTIONS = {
    "accumulate_grad_batches": 4,
    "module": Freezing,
    "log_every_n_steps": 1,
    "early_stop_callback": True,
    "early_stopping_monitor": "val",
    "early_stopping_patience": 3,
    "epochs": 4,
    "val_check_interval": "4 batches",
    "check_val_every_n_epoch": None,
}
AT = 9


def life(folder, at, resume=None):
    rows = Rows()
    module, trainer = train(folder, LOADERS["plain"], [stop(at), rows], resume, **OPTIONS)
    return module.trace, rows.rows, outcome(module, trainer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return life(tmp_path_factory.mktemp("whole"), None)


def goes_on(tmp_path, monkeypatch, mutate):
    real = checkpoint.take

    def take(loop, *how):
        tree = real(loop, *how)
        if loop.total_batches == AT:
            mutate(tree)
        return tree

    monkeypatch.setattr(checkpoint, "take", take)
    first, rows, _ = life(tmp_path, AT)
    monkeypatch.undo()
    try:
        rest, more, end = life(tmp_path, None, "auto")
    except Exception as error:  # a state that is left out may also be one that is refused
        return repr(error)
    return first + rest, rows + more, end


def test_with_every_state_it_is_the_same_run(tmp_path, monkeypatch, whole):
    assert goes_on(tmp_path, monkeypatch, lambda tree: None) == whole


@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_without_any_one_state_it_is_another_run(tmp_path, monkeypatch, whole, mutate):
    assert goes_on(tmp_path, monkeypatch, mutate) != whole
