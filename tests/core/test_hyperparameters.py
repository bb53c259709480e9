"""What a module keeps of the arguments it was made with, and that it can be made again with them."""

import argparse
import dataclasses
import pickle
from collections import OrderedDict, defaultdict, deque, namedtuple
from copy import deepcopy
from types import SimpleNamespace

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


class ChangesFirst(TinyClassifier):
    """Does what it likes with its arguments before its base class is called."""

    def __init__(self, config, lr=0.1, sizes=(), *rest, depth=2, **more):
        self_lr = config.pop("lr")
        config["nested"]["deep"].append(1)
        lr = lr * 2
        depth += 1
        more.pop("dropout")
        del sizes
        super().__init__()
        self.save_hyperparameters()
        self.used = self_lr, lr, depth


class ChangesBeforeItsBase(Base):
    def __init__(self, config, width=1):
        width *= 2
        super().__init__(lr=config.pop("lr"))
        self.width = width


def test_what_is_changed_before_it_is_kept_is_kept_as_it_was_given(tmp_path):
    config = {"lr": 0.1, "nested": {"deep": [0]}}
    module = ChangesFirst(config, 0.5, dropout=0.5)
    wanted = {"config": {"lr": 0.1, "nested": {"deep": [0]}}, "lr": 0.5, "sizes": (), "depth": 2, "dropout": 0.5}
    assert module.hparams == wanted
    again = ChangesFirst(**deepcopy(wanted))
    assert (again.hparams, again.used) == (wanted, module.used)
    trainer = Trainer(["-progress", "-model_summary"], default_root_dir=tmp_path, max_epochs=1)
    trainer.fit(module, classification_batches(2))
    loaded = ChangesFirst.load_from_checkpoint(trainer.run_dir)
    assert (loaded.hparams, loaded.used) == (wanted, module.used)
    sub = ChangesBeforeItsBase({"lr": 3}, width=4)
    assert (sub.hparams, sub.width) == ({"config": {"lr": 3}, "width": 4, "lr": 3}, 8)
    for copy in (pickle.loads(pickle.dumps(module)), deepcopy(module)):
        assert (copy.hparams, copy.used) == (wanted, module.used)


@dataclasses.dataclass(frozen=True)
class Settings:
    lr: float
    sizes: list[int]


Pair = namedtuple("Pair", "first second")
CONTAINERS = {
    "list": [1],
    "dict": {"a": 1},
    "set": {1},
    "deque": deque([1], 3),
    "ordered": OrderedDict(a=1),
    "default": defaultdict(list, a=1),
    "bytes": bytearray(b"a"),
    "namespace": argparse.Namespace(a=1),
    "simple": SimpleNamespace(a=1),
    "dataclass": Settings(0.1, [1]),
    "pair": Pair([1], {"a": 1}),
    "in others": ({"a": [deque([{1}])]},),
}


def change(value):
    """Put something else into every container."""
    if isinstance(value, (list, deque)):
        any(map(change, value))
        value.append(9)
    elif isinstance(value, tuple):
        any(map(change, value))
    elif isinstance(value, dict):
        any(map(change, value.values()))
        value["more"] = 9
    elif isinstance(value, set):
        value.add(9)
    elif isinstance(value, bytearray):
        value.extend(b"9")
    elif isinstance(value, Settings):
        value.sizes.append(9)
    elif hasattr(value, "__dict__"):
        value.more = 9


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_containers_of_every_kind_are_copied(name, when):
    class Keeps(Module):
        def __init__(self, given):
            if when == "before":
                change(given)
            super().__init__()
            self.save_hyperparameters()

    value = deepcopy(CONTAINERS[name])
    module = Keeps(value)
    change(value)
    assert value != CONTAINERS[name]
    assert module.hparams == {"given": CONTAINERS[name]}
    assert type(module.hparams.given) is type(value)
    assert getattr(module.hparams.given, "maxlen", None) == getattr(value, "maxlen", None)


class Configured(TinyClassifier):
    def __init__(self, hparams, width=3, **more):
        super().__init__()
        self.save_hyperparameters("width")
        self.save_hyperparameters(hparams)
        self.lr = hparams.lr if hasattr(hparams, "lr") else hparams["lr"]
        self.names = vars(hparams) if isinstance(hparams, argparse.Namespace) else None


@pytest.mark.parametrize(
    "hparams",
    [
        {"lr": 0.5, "sizes": [1]},
        argparse.Namespace(lr=0.5, sizes=[1]),
        Settings(0.5, [1]),
        SimpleNamespace(lr=0.5, sizes=[1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_entries_of_one_object_are_kept_and_make_the_module_again(tmp_path, hparams):
    module = Configured(hparams, width=5)
    change(hparams.sizes if hasattr(hparams, "sizes") else hparams["sizes"])
    wanted = {"width": 5, "lr": 0.5, "sizes": [1]}
    assert (module.hparams, module.hparams.lr) == (wanted, 0.5)
    for name, options in {"run": {}, "weights": {"save_weights_only": True}}.items():
        trainer = Trainer(["-progress", "-model_summary"], default_root_dir=tmp_path / name, max_epochs=1, **options)
        trainer.fit(module, classification_batches(2))
        again = Configured.load_from_checkpoint(trainer.run_dir)
        assert (again.hparams, again.lr) == (wanted, 0.5)
        assert again.names == ({"lr": 0.5, "sizes": [1]} if isinstance(hparams, argparse.Namespace) else None)
    other = Configured.load_from_checkpoint(trainer.run_dir, hparams={"lr": 2})
    assert other.hparams == {"width": 5, "lr": 2}


def test_some_entries_can_be_ignored_and_what_has_none_is_refused():
    class Keeps(Module):
        def __init__(self, *given, ignore=()):
            super().__init__()
            self.save_hyperparameters(*given, ignore=ignore)

    assert Keeps({"lr": 1, "path": 2}, ignore="path").hparams == {"lr": 1}
    for given in [(3,), ({"lr": 1}, "lr"), ([1],), (Settings,)]:
        with pytest.raises(
            TypeError, match="of Keeps takes names of arguments, or one mapping, namespace or dataclass"
        ):
            Keeps(*given)
