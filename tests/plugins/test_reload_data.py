import pytest

from lightloop import Trainer
from lightloop.testing import Probe, probe_batches


class Own(Probe):
    def __init__(self):
        super().__init__()
        self.asked = []

    def train_dataloader(self):
        self.asked.append("train")
        return probe_batches(2)

    def val_dataloader(self):
        self.asked.append("val")
        return probe_batches(1)

    def validation_step(self, batch):
        self.asked.append("pass")

    def training_step(self, batch):
        self.asked.append("batch")
        return super().training_step(batch)


def asked(epochs, **options):
    module = Own()
    Trainer(["-*", "validation"], max_epochs=epochs, num_sanity_val_steps=0, **options).fit(module)
    return module.asked


EPOCH = ["batch", "batch"]


@pytest.mark.parametrize("value", [1, True])
def test_each_loader_once_at_the_start_of_each_epoch(value):
    first = ["train", "val", *EPOCH, "pass"]
    again = ["train", *EPOCH, "val", "pass"]
    assert asked(3, reload_dataloaders_every_n_epochs=value) == first + again + again


def test_every_second_epoch():
    module_asked = asked(5, reload_dataloaders_every_n_epochs=2)
    assert (module_asked.count("train"), module_asked.count("val")) == (3, 3)
    assert module_asked.index("train", 1) == 8  # after two epochs


@pytest.mark.parametrize("value", [0, False])
def test_it_is_off(value):
    assert asked(3, reload_dataloaders_every_n_epochs=value).count("train") == 1


def test_within_an_epoch_nothing_is_asked_for():
    module_asked = asked(2, reload_dataloaders_every_n_epochs=1, val_check_interval=1)
    assert (module_asked.count("train"), module_asked.count("val"), module_asked.count("pass")) == (2, 2, 4)


def test_limits_hold_for_what_is_loaded_again():
    assert asked(3, reload_dataloaders_every_n_epochs=1, limit_train_batches=1).count("batch") == 3


def test_the_old_name():
    with pytest.warns(DeprecationWarning, match="'reload_dataloaders_every_epoch' is now called"):
        assert Trainer(["-*"], reload_dataloaders_every_epoch=True).plugin("reload_data")


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="reload_dataloaders_every_n_epochs"):
        Trainer(["-*"], reload_dataloaders_every_n_epochs=-1)
