"""Accumulation, weights, clipping and precision in random combinations, against a loop written out by hand."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lightloop import Module, Trainer

TOLERANCE = {32: 1e-5, 64: 1e-12, "bf16-mixed": 3e-2, "16-mixed": 4e-3}
"""How far a weighted window may be from the loop by hand, by precision.

The loop by hand seeds each backward with the weight's share in the window, which the library does not know before the
window is whole: it scales the sum at the end. Products that are rounded before or after a scaling differ by the type's
rounding, which mixed precision does in half. Without weights the seeds are the same, and everything is equal bit for bit.
"""

SCALE = 2.0**6
"""Weights multiply the losses on our side alone; from here on, neither side overflows in float16 and skips a step."""


class Net(Module):
    def __init__(self, momentum):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        self.momentum = momentum

    def loss(self, x):
        return self.net(x).float().square().mean() if x.dtype == torch.float32 else self.net(x).square().mean()

    def training_step(self, batch):
        x, weight = batch
        return self.loss(x) if weight is None else {"loss": self.loss(x), "weight": weight}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)


def by_hand(batches, accumulate, clip, algorithm, precision, momentum):
    model = Net(momentum)
    if precision == 64:
        model.double()
    optimizer = model.configure_optimizers()
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler("cpu", SCALE, enabled=precision == "16-mixed")
    for start in range(0, len(batches), accumulate):
        window = batches[start : start + accumulate]
        total = sum(1 if weight is None else weight for _, weight in window)
        optimizer.zero_grad()
        for x, weight in window:
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = model.loss(x.double() if precision == 64 else x)
            share = (1 if weight is None else weight) / total
            scaler.scale(loss).backward(torch.tensor(share, dtype=loss.dtype))
        scaler.unscale_(optimizer)
        if clip is not None:
            if algorithm == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            else:
                nn.utils.clip_grad_value_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return model


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=7),
    weighted=st.booleans(),
    accumulate=st.integers(1, 4),
    clip=st.sampled_from([None, 0.01, 0.2, 10.0]),
    algorithm=st.sampled_from(["norm", "value"]),
    precision=st.sampled_from([32, 64, "bf16-mixed", "16-mixed"]),
    momentum=st.sampled_from([0.0, 0.9]),
    sized=st.booleans(),
)
def test_any_combination_equals_the_loop_by_hand(
    weights, weighted, accumulate, clip, algorithm, precision, momentum, sized
):
    generator = torch.Generator().manual_seed(len(weights))
    inputs = [torch.randn(4, 3, generator=generator) for _ in weights]
    batches = list(zip(inputs, weights if weighted else [None] * len(weights), strict=True))
    accumulate = min(accumulate, len(batches))  # a longer window than the epoch is warned of
    options = {"accumulate_grad_batches": accumulate, "precision": precision}
    if clip is not None:
        options |= {"gradient_clip_val": clip, "gradient_clip_algorithm": algorithm}
    if precision == "16-mixed":
        options["precision_init_scale"] = SCALE
    ours = Net(momentum)
    result = Trainer(["-*"], **options).fit(ours, batches if sized else iter(batches))
    theirs = by_hand(batches, accumulate, clip, algorithm, precision, momentum)
    assert result.global_step == -(-len(batches) // accumulate)
    short = not sized and len(batches) % accumulate  # how short the last window is shows at its end alone
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        if weighted or short:
            torch.testing.assert_close(one, other, rtol=TOLERANCE[precision], atol=TOLERANCE[precision])
        else:
            assert torch.equal(one, other)
