"""Windows whose batches have weights: the gradient is sum of weight times gradient over sum of weights."""

import warnings

import pytest
import torch
from torch import nn

from lightloop import Module, Trainer
from lightloop.testing import Probe


class Tagger(Module):
    """A recurrent tagger of ragged token sequences; its loss is the mean over a batch's tokens, their number its weight."""

    def __init__(self, weigh="tokens"):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.rnn, self.head = nn.Embedding(11, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 11)
        self.weigh = weigh

    def training_step(self, sequences):
        packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
        inputs = packed._replace(data=self.embed(packed.data))
        logits = self.head(self.rnn(inputs)[0].data)
        loss = nn.functional.cross_entropy(logits, (packed.data * 3 + 1) % 11)
        tokens = len(packed.data)
        self.log("loss", loss, weight=tokens)
        return {"loss": loss, "weight": torch.tensor(tokens) if self.weigh == "tensor" else tokens}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def sequences():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 11, (length,), generator=generator) for length in (1, 9, 4, 17, 2, 30, 5, 5)]


def train(size, accumulate, weigh="tokens", double=False):
    tokens = sequences()
    module = Tagger(weigh)
    if double:
        module.double()
    batches = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    result = Trainer(["-*"], accumulate_grad_batches=accumulate, max_epochs=3).fit(module, batches)
    assert result.global_step == 6
    return module.state_dict()


@pytest.mark.parametrize("weigh", ["tokens", "tensor"])
@pytest.mark.parametrize(("size", "accumulate"), [(2, 2), (1, 4)])
def test_accumulation_is_exact_over_ragged_tokens(size, accumulate, weigh):
    whole, parts = train(4, 1), train(size, accumulate, weigh)
    for name, value in whole.items():
        # Sums over tokens are added up in another order; that is all that differs, as the next test shows.
        torch.testing.assert_close(parts[name], value, rtol=1e-5, atol=1e-6)


def test_what_differs_is_rounding():
    whole, parts = train(4, 1, double=True), train(1, 4, double=True)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-14)


def test_without_weights_the_means_are_averaged_which_is_not_the_same():
    class Unweighted(Tagger):
        def training_step(self, batch):
            return super().training_step(batch)["loss"]

    tokens = sequences()
    found = []
    for size, accumulate in ((4, 1), (1, 4)):
        module = Unweighted()
        batches = [tokens[start : start + size] for start in range(0, len(tokens), size)]
        Trainer(["-*"], accumulate_grad_batches=accumulate).fit(module, batches)
        found.append(module.head.weight.detach())
    assert not torch.allclose(*found, atol=1e-3)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_c5_the_logged_loss_does_not_depend_on_accumulation(accumulate):
    class Constant(Probe):
        def training_step(self, batch):
            loss = self.w * 0 + 1.0
            self.log("loss", loss, on_step=True, on_epoch=True)
            return {"loss": loss, "weight": int(batch)}

    result = Trainer(["-*"], accumulate_grad_batches=accumulate).fit(Constant(), [torch.tensor(10.0)] * 4)
    assert result.metrics["loss"] == 1.0


class Scored(Probe):
    """Batches are pairs of a gradient and the weight of the batch."""

    def training_step(self, batch):
        gradient, weight = batch
        return {"loss": gradient * self.w, "weight": weight} if weight is not None else gradient * self.w


def step(*batches):
    """The gradient of the one window that the batches make."""
    module = Scored()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Trainer(["-*"], accumulate_grad_batches=len(batches)).fit(module, batches)
    return -module.w.item(), [str(warning.message) for warning in warned]


def test_c5_the_gradient_is_of_all_tokens():
    assert step((1.0, 10), (0.0, 100)) == (pytest.approx(10 / 110), [])
    assert step((1.0, torch.tensor(10)), (0.0, torch.tensor(100.0))) == (pytest.approx(10 / 110), [])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_c5_a_batch_without_a_weight_counts_as_1_and_it_is_said_once(order):
    batches = [(1.0, 10), (0.0, None), (4.0, None)]
    gradient, warned = step(*(batches[index] for index in order))
    assert gradient == pytest.approx((1.0 * 10 + 4.0) / 12)
    assert warned == [
        "training_step gave a weight for some batches of a window and none for others: each of those counts as 1"
    ]


def test_c5_it_is_said_once_in_a_run():
    with pytest.warns(UserWarning, match="each of those counts as 1") as warned:
        Trainer(["-*"], accumulate_grad_batches=2, max_epochs=3).fit(Scored(), [(1.0, 10), (0.0, None)] * 4)
    assert len(warned) == 1


def test_c5_without_any_weight_nothing_is_said():
    assert step((1.0, None), (3.0, None)) == (2.0, [])
