"""What is done to gradients fast gives what torch's own functions give, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lightloop.gradients import differentiate, share_of
from lightloop.toolkit import clip_norm_, total_norm

SHAPES = [(3, 4), (5,), (), (2, 2, 2), (7, 1)]


def gradients(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def parameters(grads):
    made = [nn.Parameter(torch.zeros_like(grad).to_dense()) for grad in grads]
    for parameter, grad in zip(made, grads, strict=True):
        parameter.grad = grad.clone()
    return made


SETS = {
    "float32": gradients(),
    "bfloat16": gradients(torch.bfloat16),
    "of two types": [*gradients(), *gradients(torch.float64)],
    "one": gradients()[:1],
    "none": [],
    "an empty one": [*gradients(), torch.zeros(0, 3)],
    "NaN": [*gradients(), torch.tensor([math.nan, 1.0])],
    "infinity": [*gradients(), torch.tensor([math.inf, 1.0])],
    "in a graph": [grad.requires_grad_() for grad in gradients()],
}


@pytest.mark.parametrize("grads", SETS.values(), ids=SETS)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_is_torchs(grads, norm_type):
    own = torch.nn.utils.get_total_norm([grad for grad in grads if grad.numel()], norm_type)
    norm = total_norm(grads, norm_type)
    assert torch.equal(norm.detach(), own) or (norm.isnan() and own.isnan())
    assert norm.dtype == own.dtype


def test_each_index_of_a_sparse_gradient_counts_once():
    sparse = torch.sparse_coo_tensor([[0, 0, 2]], [3.0, 1.0, 3.0], (4,), check_invariants=True)
    assert total_norm([sparse], 2.0).item() == 5.0


@pytest.mark.parametrize("grads", [SETS[name] for name in list(SETS)[:6]], ids=list(SETS)[:6])
@pytest.mark.parametrize("limit", [0.5, 1000.0])
def test_clipping_is_torchs(grads, limit):
    ours, torchs = parameters(grads), parameters(grads)
    norm = torch.nn.utils.clip_grad_norm_([each for each in torchs if each.numel()], limit)
    clip_norm_([each.grad for each in ours], limit, norm)
    for one, other in zip(ours, torchs, strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nothing_is_scaled_by_a_norm_that_is_not_finite(bad):
    ours = parameters([torch.tensor([3.0, bad]), torch.tensor([4.0])])
    grads = [each.grad for each in ours]
    left = clip_norm_(grads, 1.0, total_norm(grads, 2.0))
    assert not left.isfinite()
    assert (ours[0].grad[0].item(), ours[1].grad.item()) == (3.0, 4.0)


def test_what_is_left_of_the_norm():
    ours = parameters(gradients())
    grads = [each.grad for each in ours]
    left = clip_norm_(grads, 0.5, total_norm(grads, 2.0))
    assert left.item() == pytest.approx(total_norm([each.grad for each in ours], 2.0).item())
    assert left.item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("planned", [1, 3, 4])
def test_backward_is_torchs(dtype, shape, planned):
    found = []
    for fast in (True, False):
        weight = torch.linspace(-1, 1, 6).to(dtype).requires_grad_()
        loss = ((weight.sin() * 3).exp().sum()).reshape(shape)
        seed = share_of(loss, 1, planned, cache := {})
        if fast:
            differentiate(loss, seed, cache)
            assert all(kept.requires_grad is False for kept in cache.values())
        else:
            loss.backward(None if planned == 1 else torch.full_like(loss, 1 / planned))
        found.append(weight.grad)
    assert torch.equal(*found)


def test_a_number_times_a_power_of_two_is_the_same_as_dividing_the_loss():
    found = []
    for divided in (True, False):
        weight = torch.linspace(-1, 1, 6).requires_grad_()
        loss = (weight.sin() * 3).exp().sum()
        if divided:
            (loss / 4).backward()
        else:
            differentiate(loss, share_of(loss, 1, 4, {}), {})
        found.append(weight.grad)
    assert torch.equal(*found)


class Mine(torch.Tensor):
    """A tensor that does backward in its own way."""

    def backward(self, *arguments, **more):
        self.asked = True
        return super().backward(*arguments, **more)


def test_a_tensor_of_the_users_own_is_asked_itself():
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * 2).sum().as_subclass(Mine)
    differentiate(loss, None, {})
    assert loss.asked
    assert weight.grad.tolist() == [2.0, 2.0]


def test_the_hooks_of_a_loss_are_called():
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * 2).sum()
    loss.register_hook(lambda grad: grad * 10)
    differentiate(loss, torch.tensor(0.5), {})
    assert weight.grad.tolist() == [10.0, 10.0]


def test_a_second_backward_is_torchs_error():
    loss = (torch.ones(2, requires_grad=True) ** 2).sum()
    differentiate(loss, None, {})
    with pytest.raises(RuntimeError, match="second time"):
        differentiate(loss, None, {})
