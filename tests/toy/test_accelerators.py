"""Placement and transfer on a second device that is real to torch."""

import dataclasses
import pickle
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches, toy_device
from lightloop_plugins.accelerators._device.place import place
from lightloop_plugins.accelerators._device.transfer import move

CPU = torch.device("cpu")
Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    tag: str = "a"
    made: torch.Tensor | None = dataclasses.field(default=None, init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    tag: str = "a"


class Own:
    """Moves itself in place, and says nothing."""

    def __init__(self):
        self.at = []

    def to(self, device):
        self.at.append(device)


def batches_of_every_form(tensor):
    factory = defaultdict(list, x=[tensor])
    sample = Sample(tensor)
    sample.made = tensor
    return [
        tensor,
        (tensor, [tensor, 1], {"a": tensor}),
        Point(tensor, "text"),
        factory,
        OrderedDict(b=tensor, a=tensor),
        UserDict(a=tensor),
        UserList([tensor]),
        deque([tensor], maxlen=3),
        MappingProxyType({"a": tensor}),
        sample,
        Frozen(tensor),
        pack_sequence([tensor]),
        [None, "text", b"bytes", 1, 1.5, True, range(3), tensor],
    ]


@pytest.mark.parametrize("index", range(13))
def test_what_is_there_already_is_the_same_object(index):
    batch = batches_of_every_form(torch.ones(2))[index]
    assert move(batch, CPU) is batch


@pytest.mark.parametrize("index", range(13))
def test_containers_keep_their_type_and_everything_else(toy, index):
    batch = batches_of_every_form(torch.ones(2))[index]
    moved = move(batch, toy)
    assert type(moved) is type(batch) or isinstance(batch, torch.Tensor)
    assert moved is not batch
    expected = batches_of_every_form(torch.ones(2))[index]
    back = move(moved, CPU)
    assert repr(back) == repr(expected)
    if isinstance(batch, defaultdict):
        assert moved.default_factory is list
        assert moved["x"][0].device == toy
    if isinstance(batch, deque):
        assert (moved.maxlen, moved[0].device) == (3, toy)
    if isinstance(batch, Sample):
        assert moved.x.device == moved.made.device == toy
        assert batch.x.device == CPU
    if isinstance(batch, Frozen):
        assert moved.x.device == toy
    if index == 11:
        assert moved.data.device == toy
    if index == 12:
        assert moved[:-1] == batch[:-1]


def test_what_moves_itself_is_asked(toy):
    own = Own()
    assert move({"own": own}, toy)["own"] is own
    assert own.at == [toy]


class OnToy(TinyClassifier):
    """Says where its batches are."""

    def __init__(self):
        super().__init__()
        self.devices = []

    def training_step(self, batch, batch_idx):
        self.devices.append(batch[0].device)
        return super().training_step(batch, batch_idx)


def trained(device, **options):
    torch.manual_seed(0)
    module = OnToy()
    Trainer(["-*"], accelerator=device, max_epochs=2, **options).fit(module, classification_batches())
    return module


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1}], ids=str)
def test_training_on_the_device_is_bit_equal_to_the_cpu(toy, options):
    ours, plain = trained("toy", **options), trained("cpu", **options)
    assert ours.devices == [toy] * 12
    assert ours.device == toy
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("name", ["toy", "auto", "gpu"])
def test_a_device_is_found_by_its_type_or_by_being_there(toy, name):
    assert trained(name).devices == [toy] * 12


@pytest.fixture
def first_again():
    yield
    torch.accelerator.set_device_index(0)


@pytest.mark.parametrize("options", [{"accelerator": "toy:1"}, {"accelerator": "toy", "accelerator_index": 1}], ids=str)
def test_another_device_of_the_kind(toy, first_again, options):
    module = OnToy()
    (logits,) = Trainer(["-*"], **options).predict(module.net, [torch.ones(1, 4)])
    assert module.device == logits.device == torch.device("toy", 1)
    with pytest.raises(RuntimeError, match=r"asks for device toy:2, .* there are the CPU and 2 of toy"):
        Trainer(["-*"], accelerator="toy:2").predict(module.net, [torch.ones(1, 4)])


def test_a_launcher_says_which_device_is_this_process(toy, first_again, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    module = OnToy()
    Trainer(["-*"], accelerator="toy").predict(module.net, [torch.ones(1, 4)])
    assert module.device == torch.device("toy", 1)


def test_each_tensor_is_transferred_once_and_nothing_is_read(toy):
    torch.manual_seed(0)
    module = OnToy()
    seen = []

    class count(Plugin):
        name, after = "count", ("accelerator",)

        @hookimpl
        def before_fit(self, loop):
            toy_device.counts.clear()

        @hookimpl
        def after_batch(self, loop):
            seen.append((toy_device.counts["to_device"], toy_device.counts["reads"]))

    class two(OnToy):
        def training_step(self, batch, batch_idx, optimizer_idx):
            return OnToy.training_step(self, batch, batch_idx)

        def configure_optimizers(self):
            return [torch.optim.AdamW(part.parameters(), 0.1) for part in (self.net[0], self.net[2])]

    options = {"accelerator": "toy", "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    Trainer(["-*", "lr_schedule", count()], **options).fit(module, classification_batches())
    assert [reads for _, reads in seen] == [0] * 6
    extra = seen[0][0] - 2  # constants that torch or the loop make once: the seed of a backward
    assert [moved for moved, _ in seen] == [2 * (index + 1) + extra for index in range(6)]
    assert extra <= 1
    seen.clear()
    Trainer(["-*", count()], accelerator="toy").fit(two(), classification_batches())
    assert [moved for moved, _ in seen] == [2, 4, 6, 8, 10, 12]


def test_a_batch_that_was_left_on_the_cpu_raises(toy):
    class forgets(OnToy):
        def transfer_batch_to_device(self, batch, device):
            return batch

    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        Trainer(["-*"], accelerator="toy").fit(forgets(), classification_batches(1))


@pytest.mark.parametrize("device", ["cpu", "toy"])
def test_the_modules_own_transfer_is_always_called(toy, device):
    class own(OnToy):
        calls = []

        def transfer_batch_to_device(self, batch, device):
            self.calls.append(device)
            return tuple(part.to(device) for part in batch)

    trainer = Trainer(["-*"], accelerator=device)
    trainer.fit(own(), classification_batches(3))
    trainer.validate(own(), classification_batches(2))
    assert own.calls == [trainer.loop.device] * 5
    pickle.dumps(trainer)


def test_shared_parameters_stay_shared(toy):
    class tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.b.weight = self.a.weight

    module = tied()
    place(module, toy, quietly=True)
    assert module.b.weight is module.a.weight
    assert module.a.weight.device == module.b.bias.device == toy


def test_a_module_that_is_elsewhere_is_moved_with_a_warning(toy):
    module = OnToy().to(toy)
    with pytest.warns(
        UserWarning, match="the module was on toy:0 and is moved to cpu; accelerator='toy' uses it there"
    ):
        Trainer(["-*", "cpu"]).fit(module, classification_batches(1))
    assert module.device == CPU
