"""What a module keeps of the arguments it was made with, and that it can be made again with them."""

import pytest

from lightloop import Module, Trainer
from lightloop.testing import TinyClassifier, classification_batches


class Base(Module):
    def __init__(self, lr=0.1, **more):
        super().__init__()
        self.save_hyperparameters()


class Sub(Base):
    def __init__(self, width, lr=0.2, depth=3):
        super().__init__(lr * 2)
        self.width = width


class SubSub(Sub):
    def __init__(self, name, *, extra=None, **more):
        super().__init__(**more)


def test_those_of_the_subclass_are_kept_where_the_base_class_keeps_them():
    assert Base(0.5, a=1).hparams == {"lr": 0.5, "a": 1}
    assert Sub(7).hparams == {"width": 7, "lr": 0.2, "depth": 3}
    assert SubSub("n", width=4).hparams == {"name": "n", "extra": None, "width": 4, "lr": 0.2, "depth": 3}


def test_no_more_than_the_constructors_of_this_object_is_looked_at():
    class Outer(Module):
        def __init__(self, size):
            super().__init__()
            self.inner = Sub(width=size + 1)

        def build(self, other):
            self.made = Sub(width=other)
            self.save_hyperparameters()

        def training_step(self, batch):
            self.build(5)

    outer = Outer(1)
    assert outer.inner.hparams == {"width": 2, "lr": 0.2, "depth": 3}
    outer.training_step("batch")
    assert outer.made.hparams["width"] == 5
    assert outer.hparams == {"other": 5}


def test_names_are_chosen_among_all_of_them():
    class Chooses(Module):
        def __init__(self, lr):
            super().__init__()
            self.save_hyperparameters("width", "lr", ignore="lr")

    class Chosen(Chooses):
        def __init__(self, width):
            super().__init__(lr=1)

    assert Chosen(3).hparams == {"width": 3}
    with pytest.raises(ValueError, match="has no argument 'width'"):
        Chooses(1)


class Pops(TinyClassifier):
    def __init__(self, config, sizes=(1, 2), **more):
        super().__init__()
        self.save_hyperparameters()
        self.lr = config.pop("lr")
        config["nested"]["deep"].append(1)
        self.left = more.pop("dropout")


def test_what_is_changed_later_is_kept_as_it_was_and_makes_the_module_again(tmp_path):
    config = {"lr": 0.1, "nested": {"deep": [0]}}
    module = Pops(config, dropout=0.5)
    wanted = {"config": {"lr": 0.1, "nested": {"deep": [0]}}, "sizes": (1, 2), "dropout": 0.5}
    assert module.hparams == wanted
    trainer = Trainer(["-progress", "-model_summary"], default_root_dir=tmp_path, max_epochs=1)
    trainer.fit(module, classification_batches(2))
    again = Pops.load_from_checkpoint(trainer.run_dir)
    assert (again.lr, again.left, again.hparams) == (0.1, 0.5, wanted)


class Small(Sub, TinyClassifier):
    """A subclass that hands nothing on to its base by its own name."""

    def __init__(self, units):
        super().__init__(width=units * 2)


def test_a_subclass_is_made_again_from_a_checkpoint(tmp_path):
    module = Small(4)
    assert module.hparams["units"] == 4
    trainer = Trainer(["-progress", "-model_summary"], default_root_dir=tmp_path, max_epochs=1)
    trainer.fit(module, classification_batches(2))
    assert Small.load_from_checkpoint(trainer.run_dir).width == 8
