"""A user's step is called with just what its signature names."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from lightloop import Key, Stash, bind, defined

ARGUMENTS = {"batch": "loop.batch", "batch_idx": "loop.batch_idx", "epoch": lambda loop: loop.epoch, "loop": "loop"}
LOOP = SimpleNamespace(batch="B", batch_idx=4, epoch=2)


def call(step):
    return bind(step, ARGUMENTS)(LOOP)


def decorated(step):
    @functools.wraps(step)
    def wrapper(*arguments, **named):
        return step(*arguments, **named)

    return wrapper


class Steps:
    def method(self, batch, batch_idx):
        return batch, batch_idx

    @staticmethod
    def static(batch, epoch):
        return batch, epoch

    @classmethod
    def of_class(cls, batch):
        return batch

    def __call__(self, batch, batch_idx):
        return batch, batch_idx


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (lambda batch: batch, "B"),
        (lambda anything: anything, "B"),
        (lambda x, batch_idx: (x, batch_idx), ("B", 4)),
        (lambda x, epoch, batch_idx: (x, epoch, batch_idx), ("B", 2, 4)),
        (lambda x, *, epoch: (x, epoch), ("B", 2)),
        (lambda x, batch_idx, /: (x, batch_idx), ("B", 4)),
        (lambda x, other=7, epoch=0: (x, other, epoch), ("B", 7, 2)),
        (lambda x, loop: (x, loop is LOOP), ("B", True)),
        (lambda *everything: everything, ("B", 4)),
        (lambda *everything, epoch: (everything, epoch), (("B", 4), 2)),
        (lambda x, *rest, **named: (x, rest, named), ("B", (), {})),
        (lambda x, batch: (x, batch), ("B", "B")),
        (Steps().method, ("B", 4)),
        (Steps.static, ("B", 2)),
        (Steps.of_class, "B"),
        (Steps(), ("B", 4)),
        (functools.partial(lambda scale, x, epoch: (scale, x, epoch), 3), (3, "B", 2)),
        (functools.partial(lambda x, epoch, scale: (x, epoch, scale), scale=3), ("B", 2, 3)),
        (decorated(lambda x, epoch: (x, epoch)), ("B", 2)),
        (len, 1),
    ],
)
def test_every_signature(step, result):
    assert call(step) == result


def test_the_signature_is_looked_at_once(monkeypatch):
    step = bind(lambda batch, epoch: (batch, epoch), ARGUMENTS)
    monkeypatch.setattr("inspect.signature", None)
    assert [step(LOOP) for _ in range(2)] == [("B", 2)] * 2


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda: None, r"<lambda> must take the batch as its first argument; it takes \(\)"),
        (lambda *, batch: None, r"<lambda> must take the batch as its first argument; it takes \(\*, batch\)"),
        (lambda epoch, batch: None, "<lambda> must take the batch as its first argument, not 'epoch'"),
        (
            lambda batch, hiddens: None,
            "<lambda> wants the argument 'hiddens'; what it can have is batch, batch_idx, epoch, loop",
        ),
        (lambda batch, *, hiddens: None, "<lambda> wants the argument 'hiddens'"),
    ],
)
def test_what_cannot_be_called_is_refused_at_once(step, text):
    with pytest.raises(TypeError, match=text):
        bind(step, ARGUMENTS)


def test_none_is_as_good_as_absent():
    class Has:
        present = staticmethod(len)
        absent = None
        wrong = 3

    assert defined(Has(), "present") is len
    assert defined(Has(), "absent") is defined(Has(), "nothing") is None
    with pytest.raises(TypeError, match=r"Has\.wrong must be a function; it is int"):
        defined(Has(), "wrong")


def test_a_stash_keeps_values_by_key_not_by_name():
    one: Key[int] = Key("same")
    other: Key[str] = Key("same")
    stash = Stash()
    stash[one] = 3
    assert one in stash
    assert other not in stash
    assert (stash[one], stash.get(one), stash.get(other), stash.get(other, "x"), len(stash)) == (3, 3, None, "x", 1)
    stash[one] = 4
    stash[other] = "text"
    assert (stash[one], stash[other], len(stash), repr(one)) == (4, "text", 2, "Key('same')")
    del stash[one]
    assert one not in stash
    with pytest.raises(KeyError):
        stash[one]
