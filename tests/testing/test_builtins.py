"""Every built-in plugin passes the contract that third parties are held to."""

import torch

from lightloop import discover
from lightloop.testing import PluginContract, TinyClassifier, classification_batches

OPTIONS = {
    "accelerator": {"kind": "cpu"},
    "accumulate": {"batches": 2},
    "clip": {"limit": 0.01},
    "detect_anomaly": {"on": True},
    "device_stats": {"when": 1},
    "duration": {"max_epochs": 1},
    "early_stopping": {"monitor": "loss"},
    "ema": {"decay": 0.9},
    "fast_dev_run": {"batches": 1},
    "grad_norm": {"norm_type": 2.0},
    "limits": {"train": 1},
    "lr_monitor": {"per": "step"},
    "nonfinite": {"action": "warn"},
    "nonfinite_async": {"action": "warn"},
    "overfit": {"batches": 1},
    "precision": {"precision": "bf16-mixed"},
    "profiler": {"kind": True},
    "reload_data": {"epochs": 1},
    "seed": {"seed": 3},
    "split_on_oom": {"on": True},
    "swa": {"start": 1},
    "tbptt": {"steps": 2},
    "terminate_on_nan": {"on": True},
    "time_limit": {"limit": 60},
    "trace": {"to": True},
}
"""With which they do what they are for; the rest needs none."""
OTHERS = {"swa": ["duration"], "devices": ["ddp"]}
TRAINER = {"swa": {"max_epochs": 2}}
ELSEWHERE = {"cuda", "mps", "gpus", "horovod", "xla", "xla_spmd", "fsdp", "dp"}
"""They need hardware, or packages that not everybody has, to be run at all."""
SEARCHES = {"batch_size_find", "lr_find"}
"""They run the fit several times over."""
COMPILES = {"compile"}
"""Takes seconds, and torch's compiler warns of its own accord, which is an error here."""
TOGETHER = {"clip", "ema"}
"""Those that are run in two processes here: of each, it takes a second."""
NAMES = [
    name
    for name, found in discover().items()
    if found.distribution == "lightloop" and name not in ELSEWHERE | SEARCHES | COMPILES
]


class Sequences(TinyClassifier):
    """Batches are sequences, of shapes ``(n, time, 4)`` and ``(n, time)``."""

    def training_step(self, batch, batch_idx, hiddens=None):
        x, y = batch
        return {"loss": torch.nn.functional.cross_entropy(self(x).flatten(0, 1), y.flatten()), "hiddens": x[:, -1]}


def seeded(kind):
    torch.manual_seed(0)
    return kind()


def sequences(batches):
    return [(x.reshape(2, 4, 4), y.reshape(2, 4)) for x, y in classification_batches(batches)]


SPECIAL = {
    "tbptt": {"module": lambda self: seeded(Sequences), "data": lambda self, batches=2: sequences(batches)},
    "time_limit": {"same_state": lambda self, one, other: one.keys() == other.keys()},  # time goes on
    # The test of resuming sets these up itself.
    "checkpoint": {"resumes": False},
    "duration": {"resumes": False},
    "run_dir": {"resumes": False},
}


def contract(name):
    given = {
        "plugin": name,
        "options": OPTIONS.get(name, {}),
        "others": OTHERS.get(name, ()),
        "trainer": TRAINER.get(name, {}),
        "processes": 2 if name in TOGETHER else 1,
        "__module__": __name__,
        **SPECIAL.get(name, {}),
    }
    return type(f"Test_{name}", (PluginContract,), given)


for _name in NAMES:
    globals()[f"Test_{_name}"] = contract(_name)


def test_every_builtin_is_here_or_is_named():
    ours = {name for name, found in discover().items() if found.distribution == "lightloop"}
    assert ours == {*NAMES} | (ours & {*ELSEWHERE, *SEARCHES, *COMPILES})
    assert len(NAMES) > 40
