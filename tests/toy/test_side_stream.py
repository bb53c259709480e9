"""Copies out of pinned memory go by a stream of their own, and each call that keeps that right is made, in its order."""

import contextlib
import itertools
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches, count_syncs, toy_device
from lightloop_plugins.accelerators._device import transfer
from lightloop_plugins.accelerators._device.transfer import SideStream


@pytest.fixture
def pinned(monkeypatch):
    """The toy device has no memory that is pinned: the large tensors and ``True`` in ``pinned`` stand for such."""
    monkeypatch.setattr(transfer, "WORTH", 32)
    monkeypatch.setattr(transfer, "is_pinned", lambda tensor: tensor.device.type == "cpu" and tensor.ndim == 2)


class Recorded:
    """Stands for streams and events, and for the part of a tensor that is told of them: notes what is called, in its order.

    It cannot show that a device does what it is told: that copies and kernels overlap, or that memory is not given out
    again too early. ``benchmarks/gpu.py`` looks at that on a device that does.
    """

    def __init__(self, monkeypatch):
        self.calls = []
        self.current = "main"
        self.events = 0
        note, outer = self.calls.append, self

        class Event:
            def __init__(self, number):
                self.number = number

            def synchronize(self):
                note(f"wait for event {self.number}")

        class Stream:
            def __init__(self, name):
                self.name = name

            def __enter__(self):
                self.before, outer.current = outer.current, self.name

            def __exit__(self, *_):
                outer.current = self.before

            def record_event(self):
                outer.events += 1
                note(f"event {outer.events} in {self.name}")
                return Event(outer.events)

            def wait_stream(self, other):
                note(f"{self.name} waits for {other.name}")

        plain = transfer.to_device

        def to_device(tensor, device):
            note(f"copy {tuple(tensor.shape)} in {self.current}")
            return plain(tensor, device)

        monkeypatch.setattr(torch, "Stream", lambda device: Stream("side"))
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: Stream("main"))
        monkeypatch.setattr(
            toy_device.ToyTensor,
            "record_stream",
            lambda tensor, stream: note(f"{tuple(tensor.shape)} is used in {stream.name}"),
        )
        monkeypatch.setattr(transfer, "to_device", to_device)


@pytest.fixture
def calls(monkeypatch, pinned):
    return Recorded(monkeypatch).calls


def test_pinned_tensors_go_by_the_side_stream_and_all_others_by_the_current_one(toy, calls):
    there = torch.ones(4, 4, device=toy)
    batch = {
        "images": torch.ones(4, 3),
        "pair": (torch.ones(4, 5), there),
        "pageable": torch.ones(32),
        "small": torch.ones(1, 1),
        "kept": torch.nn.Parameter(torch.ones(4, 6)),
        "packed": pack_sequence([torch.ones(2, 4), torch.ones(3, 4)], enforce_sorted=False),
        "sparse": torch.eye(6).to_sparse(),
    }
    moved = SideStream(toy).move(batch)
    assert calls == [
        "copy (4, 3) in side",
        "copy (4, 5) in side",
        "copy (32,) in main",
        "copy (1, 1) in main",
        "copy (4, 6) in main",  # a subclass of Tensor may do more than copy
        "copy (5, 4) in side",
        "copy (2,) in main",
        "copy (2,) in main",
        "copy (6, 6) in main",
        "event 1 in main",
        "main waits for side",
        "(4, 3) is used in main",
        "(4, 5) is used in main",
        "(5, 4) is used in main",
    ]
    assert moved["pair"][1] is there
    assert moved["packed"].batch_sizes.device.type == "cpu"


def test_where_nothing_is_pinned_or_all_is_there_no_stream_is_touched(toy, calls):
    side = SideStream(toy)
    side.move([torch.ones(32), 1, "text"])
    batch = [torch.ones(4, 4, device=toy)]
    assert side.move(batch) is batch
    assert calls == ["copy (32,) in main"]


def test_what_moves_itself_does_so_in_the_current_stream(toy, monkeypatch, pinned):
    recorded = Recorded(monkeypatch)

    class Own:
        def to(self, device):
            recorded.calls.append(f"own in {recorded.current}")

    SideStream(toy).move([torch.ones(4, 4), Own(), torch.ones(4, 4)])
    assert recorded.calls[:3] == ["copy (4, 4) in side", "own in main", "copy (4, 4) in side"]


def test_only_so_many_batches_wait_on_the_device(toy, calls, monkeypatch):
    monkeypatch.setattr(transfer, "AHEAD", 2)
    side = SideStream(toy)
    for _ in range(4):
        side.move(torch.ones(4, 4))
    assert [call for call in calls if "event" in call] == [
        "event 1 in main",
        "event 2 in main",
        "event 3 in main",
        "wait for event 1",  # what came before the first batch: two are in the queue, and the third was just put there
        "event 4 in main",
        "wait for event 2",
    ]


def test_a_copy_that_fails_leaves_nothing_for_the_next_batch(toy, calls):
    class Fails:
        def to(self, device):
            raise RuntimeError("the test says so")

    side = SideStream(toy)
    with pytest.raises(RuntimeError, match="the test says so"):
        side.move([torch.ones(4, 4), Fails()])
    side.move(torch.ones(4, 5))
    assert calls[-1] == "(4, 5) is used in main"
    assert "(4, 4) is used in main" not in calls


def test_training_with_streams_of_torch_is_bit_equal_to_the_cpu(toy, pinned, monkeypatch):
    """The calls themselves are torch's, on a device with a single stream and so no order; its events cannot be waited for."""
    monkeypatch.setattr(transfer, "AHEAD", 100)
    monkeypatch.setattr("lightloop_plugins.accelerators._device.place.STREAMS", ("toy",))
    used = []
    monkeypatch.setattr(toy_device.ToyTensor, "record_stream", lambda tensor, stream: used.append(stream))

    def trained(device):
        torch.manual_seed(0)
        module = TinyClassifier()
        trainer = Trainer(["-*"], accelerator=device, max_epochs=2)
        trainer.fit(module, classification_batches(12))
        trainer.validate(module, classification_batches(2))
        pickle.dumps(trainer)
        return [parameter.cpu() for parameter in module.parameters()]

    ours = trained("toy")
    assert len(used) == 26
    assert {type(stream) for stream in used} == {torch.Stream}
    for one, other in zip(ours, trained("cpu"), strict=True):
        assert torch.equal(one, other)


def test_with_all_default_plugins_a_batch_copies_its_own_tensors_waits_for_no_copy_and_reads_nothing(toy, tmp_path):
    """But the two that act by the clock or when an epoch ends: a progress bar reads as often as it draws, a save all there is."""
    seen = []

    class Counts(Plugin):
        name, after = "counts", ("accelerator",)

        @hookimpl
        def before_batch(self, loop):
            seen.append(tuple(toy_device.counts[kind] for kind in ("to_device", "waits", "reads")))

    options = {"gradient_clip_val": 1.0, "accumulate_grad_batches": 2, "track_grad_norm": 2.0, "log_lr": "step"}
    trainer = Trainer(
        [Counts(), "-progress", "-checkpoint"],
        accelerator="toy",
        default_root_dir=tmp_path,
        log_every_n_steps=100,
        **options,
    )
    trainer.fit(TinyClassifier(), classification_batches(12))
    moved, waits, reads = zip(
        *(map(int.__sub__, after, before) for before, after in itertools.pairwise(seen)), strict=True
    )
    assert moved[2:] == (2,) * 9  # in the first window, a constant that is made once
    assert waits[2:] == reads[2:] == (0,) * 9


@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        (lambda toy: torch.ones(2).to(toy), 1),
        (lambda toy: torch.ones(2).to(toy, non_blocking=True), 0),
        (lambda toy: torch.zeros(2, device=toy).copy_(torch.ones(2)), 1),
        (lambda toy: torch.zeros(2, device=toy).copy_(torch.ones(2), True), 0),
        (lambda toy: torch.full((2,), 3.0, device=toy), 0),
        (lambda toy: torch.zeros(2, device=toy).mul_(2.0), 0),
    ],
)
def test_copies_that_wait_are_counted(toy, copy, waits):
    with count_syncs() as syncs:
        copy(toy)
    assert len(syncs) == waits
    assert toy_device.counts["waits"] == waits
    assert all(sync.what in ("_to_copy", "copy_") for sync in syncs)


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_tensors_that_are_made_on_a_device_wait(toy, make):
    make(1.0, device=toy)
    assert toy_device.counts["waits"] == 1
    there = torch.zeros(2, device=toy)
    with count_syncs() as syncs:
        with contextlib.suppress(
            RuntimeError
        ):  # under a mode, torch cannot make one on a device that is written in Python
            make(1.0, device=toy)
        torch.as_tensor(there, device=toy)
        make(1.0, device="cpu")
    assert [sync.what for sync in syncs] == [make.__name__]


def test_a_dataset_that_lies_on_the_device_is_read_there_without_a_wait(toy):
    data = TensorDataset(*(torch.cat(parts).to(toy) for parts in zip(*classification_batches(4), strict=True)))
    toy_device.counts.clear()
    seen = []

    class Counts(Plugin):
        name = "counts"

        @hookimpl
        def before_batch(self, loop):
            seen.append((loop.batch[0].device, toy_device.counts["waits"], toy_device.counts["reads"]))

    module = TinyClassifier().to(toy)
    toy_device.counts.clear()
    Trainer(["-*", "whole_batches", Counts()], accelerator="toy").fit(module, DataLoader(data, batch_size=8))
    assert seen == [(toy, 0, 0)] * len(seen)
    assert len(seen) == len(data) // 8
