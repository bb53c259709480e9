import torch

from lightloop import Trainer
from lightloop.testing import Probe, Rows, TinyClassifier, classification_batches, probe_batches

BARE = ["-*", "log_every", "lr_schedule"]


class Halving(Probe):
    def __init__(self, interval="step", lr=1.0):
        super().__init__(lr=lr)
        self.interval = interval

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


def run(module, batches=3, **options):
    rows = Rows()
    Trainer([*BARE, "lr_monitor", rows], log_every_n_steps=1, **options).fit(module, probe_batches(batches))
    return rows.of("lr")


def test_the_rate_that_each_step_is_made_with():
    assert run(Halving()) == [(1, {"lr": 1.0}), (2, {"lr": 0.5}), (3, {"lr": 0.25})]


def test_a_rate_that_is_a_tensor_is_the_one_of_its_step():
    assert run(Halving(lr=torch.tensor(1.0))) == [(1, {"lr": 1.0}), (2, {"lr": 0.5}), (3, {"lr": 0.25})]


def test_the_rate_of_each_epoch():
    assert run(Halving("epoch"), 2, max_epochs=3, log_lr="epoch") == [
        (2, {"lr": 1.0}),
        (4, {"lr": 0.5}),
        (6, {"lr": 0.25}),
    ]


def test_groups_and_optimizers_have_names():
    class Several(Probe):
        def training_step(self, batch, optimizer_idx):
            return super().training_step(batch)

        def configure_optimizers(self):
            named = torch.optim.SGD(
                [
                    {"params": [self.w], "lr": 0.1, "name": "head"},
                    {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.2},
                ]
            )
            return [named, super().configure_optimizers()]

    assert run(Several(), 1) == [(1, {"lr/0/head": 0.1, "lr/0/1": 0.2, "lr/1": 1.0})]


def test_it_is_off_by_default():
    assert Trainer().plugin("lr_monitor") is None
    assert Trainer(log_lr="step").plugin("lr_monitor") is not None


def test_groups_of_one_name_are_both_there():
    class Twins(TinyClassifier):
        def configure_optimizers(self):
            weight, *others = self.parameters()
            groups = [("a", 0.1, weight), ("b", 0.2, others[0]), ("a", 0.3, others[1])]
            return torch.optim.SGD([{"params": [part], "lr": lr, "name": name} for name, lr, part in groups], lr=1.0)

    metrics = Trainer(["-*"], log_lr="step").fit(Twins(), classification_batches(1)).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("lr")} == {
        "lr/a/0": 0.1,
        "lr/b": 0.2,
        "lr/a/2": 0.3,
    }
