"""What a run keeps alive: no more than the loop that one would write by hand."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from lightloop import Module, Trainer

SIZE = 512


class Large(Module):
    """Returns large outputs, and looks what is alive when it begins and ends a step."""

    def __init__(self, optimizers=1, manual=False):
        super().__init__()
        self.net = nn.Linear(SIZE, SIZE)
        self.count, self.automatic_optimization = optimizers, not manual
        self.returned, self.alive, self.bytes = [], [], []

    def training_step(self, batch, **which):
        self.look()
        logits = self.net(batch)
        loss = logits.square().mean()
        self.look(loss)
        self.returned += [weakref.ref(logits)]
        if not self.automatic_optimization:
            self.trainer.optimizers[0].zero_grad()
            loss.backward()
            self.trainer.optimizers[0].step()
        return {"loss": loss, "logits": logits, "more": [logits.detach() + 1]}

    def look(self, *own):
        self.alive.append(sum(each() is not None for each in self.returned))
        dense = [each for each in gc.get_objects() if type(each) is Tensor and each.layout is torch.strided]
        tensors = {each.data_ptr(): each.untyped_storage().nbytes() for each in dense if each.device.type == "cpu"}
        self.bytes.append(sum(tensors.values()))

    def configure_optimizers(self):
        parts = [[self.net.weight], [self.net.bias]] if self.count == 2 else [list(self.parameters())]
        return [torch.optim.SGD(part, lr=0.1) for part in parts]


DATA = [torch.ones(SIZE, SIZE) for _ in range(4)]


def by_hand(module):
    (optimizer,) = module.configure_optimizers()
    for batch in DATA:
        loss = module.training_step(batch)["loss"]
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("optimizers", "manual"), [(1, False), (2, False), (1, True)])
def test_what_a_step_returned_is_free_before_the_next_and_after_the_fit(optimizers, manual, accumulate):
    module = Large(optimizers, manual)
    trainer = Trainer(["-*", "manual_optimization", "toggle"], accumulate_grad_batches=accumulate)
    trainer.fit(module, DATA)
    assert module.alive == [0] * len(module.alive)
    assert [each() for each in module.returned] == [None] * len(DATA) * optimizers
    assert len(module.returned) == len(DATA) * optimizers


def test_the_peak_is_that_of_a_plain_loop():
    gc.collect()
    plain, ours = Large(), Large()
    by_hand(plain)
    Trainer().fit(ours, DATA)
    assert max(ours.bytes) <= 1.05 * max(plain.bytes)
