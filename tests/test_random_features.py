"""Random combinations of features against one loop that is written by hand and shares no code with the library."""

import warnings
from fractions import Fraction

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from lightloop import Module, Trainer

FEATURES = 3


class Net(Module):
    """One small recurrent cell per optimizer; the loss of each depends on the others' parameters, too."""

    def __init__(self, case):
        super().__init__()
        generator = torch.Generator().manual_seed(case["seed"])

        def make(*shape):
            return nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator) / 2)

        self.w = nn.ParameterList(make(FEATURES) for _ in range(case["optimizers"]))
        self.u = nn.ParameterList(make() for _ in range(case["optimizers"]))
        self.case = case
        self.seen = []

    def loss(self, x, which, hidden):
        """The loss of ``x``, of shape (batch, time, features), and the next hidden state, of shape (batch,)."""
        hidden = x.new_zeros(len(x)) if hidden is None else hidden
        loss = 0
        for now in x.unbind(1):
            hidden = torch.tanh(now @ self.w[which] + self.u[which] * hidden)
            loss = loss + (hidden - now.sum(1)).square().mean()
        others = sum(((x @ w).mean() for index, w in enumerate(self.w) if index != which), x.new_zeros(()))
        return loss / x.shape[1] + hidden.mean() * others, hidden

    def is_none(self, batch_idx, piece_idx, which):
        every = self.case["none_every"]
        return every is not None and (batch_idx * 5 + piece_idx * 3 + which) % every == every - 1

    def weight(self, batch_idx):
        return 1 + batch_idx % 3 if self.case["weighted"] else None

    def optimizers(self):
        make = torch.optim.Adam if self.case["adam"] else torch.optim.SGD
        return [make([w, u], lr=0.05 * (1 + index)) for index, (w, u) in enumerate(zip(self.w, self.u, strict=True))]

    def configure_optimizers(self):
        optimizers = self.optimizers()
        frequencies = self.case["frequencies"]
        if frequencies is None:
            return optimizers
        return [{"optimizer": each, "frequency": every} for each, every in zip(optimizers, frequencies, strict=True)]


class Plain(Net):
    def training_step(self, batch, batch_idx, optimizer_idx):
        return self.outcome(batch, batch_idx, 0, optimizer_idx, None)

    def outcome(self, batch, batch_idx, piece_idx, which, hidden):
        self.seen.append((batch_idx, piece_idx, which))
        loss, hidden = self.loss(batch, which, hidden)
        output = {"loss": None if self.is_none(batch_idx, piece_idx, which) else loss, "hiddens": hidden}
        weight = self.weight(batch_idx)
        return output if weight is None else {**output, "weight": weight}


class Cut(Plain):
    def training_step(self, batch, batch_idx, optimizer_idx, hiddens, loop):
        return self.outcome(batch, batch_idx, loop.piece_idx, optimizer_idx, hiddens)


class Unsized:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def batches_of(case):
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    return [torch.randn(2, time, FEATURES, dtype=torch.float64, generator=generator) for time in case["times"]]


def by_the_library(case):
    net = (Cut if case["tbptt"] else Plain)(case)
    trainer = Trainer(
        plugins=["-progress", "-model_summary"],
        max_epochs=case["epochs"],
        max_steps=case["max_steps"],
        accumulate_grad_batches=case["accumulate"],
        limit_train_batches=1.0 if case["limit"] is None else case["limit"],
        gradient_clip_val=case["clip"],
        truncated_bptt_steps=case["tbptt"],
        **({"tbptt_accumulate": True} if case["tbptt"] and case["tbptt_accumulate"] else {}),
        # By hand the last batch is known, and the step on it of one optimizer comes before the forward of the next.
        read_ahead=case["unsized"] and case["optimizers"] > 1,
    )
    batches = batches_of(case)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="accumulate_grad_batches=")  # longer than the epoch: meant here
        warnings.filterwarnings("ignore", message="training_step gave a weight for some")
        result = trainer.fit(net, Unsized(batches) if case["unsized"] else batches)
    return net, result.global_step, list(trainer.loop.optimizer_steps)


class ByHand:
    """The same training, written as plainly as possible: it keeps every gradient of a window and averages at its end."""

    def __init__(self, case):
        self.case = case
        self.net = Net(case)
        self.optimizers = self.net.optimizers()
        self.count = len(self.optimizers)
        self.global_step, self.steps = 0, [0] * self.count
        self.windows = [[] for _ in self.optimizers]
        self.begun = [0] * self.count
        self.closed = 0
        self.exact = True

    def train(self):
        case = self.case
        for epoch in range(case["epochs"]):
            self.factor = case["accumulate"]
            if isinstance(self.factor, dict):
                started = [key for key in self.factor if key <= epoch]
                self.factor = self.factor[max(started)] if started else 1
            batches = batches_of(case)[: case["limit"]]
            for batch_idx, batch in enumerate(batches):
                self.batch(batch, batch_idx, batch_idx == len(batches) - 1)
                if self.is_up():
                    return self
            assert not any(self.windows)
        return self

    def is_up(self):
        return self.case["max_steps"] is not None and self.global_step >= self.case["max_steps"]

    def turn(self):
        frequencies = self.case["frequencies"]
        if frequencies is None:
            return range(self.count)
        order = [index for index, every in enumerate(frequencies) for _ in range(every)]
        return [order[self.closed % len(order)]]

    def batch(self, batch, batch_idx, is_last):
        pieces = batch.split(self.case["tbptt"], dim=1) if self.case["tbptt"] else [batch]
        selected, hidden, closed = self.turn(), {}, False
        for which in selected:
            self.begun[which] += 1
        for piece_idx, piece in enumerate(pieces):
            if self.is_up():
                break
            step = self.global_step + 1
            for which in selected:
                self.net.seen.append((batch_idx, piece_idx, which))
                for index in range(self.count):  # the graph of one optimizer is without the others' parameters
                    for parameter in (self.net.w[index], self.net.u[index]):
                        parameter.requires_grad_(index == which)
                loss, state = self.net.loss(piece, which, hidden.get(which))
                hidden[which] = state.detach()
                if not self.net.is_none(batch_idx, piece_idx, which):
                    weight = self.net.weight(batch_idx) or Fraction(piece.shape[1], batch.shape[1])
                    own = [self.net.w[which], self.net.u[which]]
                    self.windows[which].append((weight, torch.autograd.grad(loss, own)))
                each_steps = self.factor == 1 and not (self.case["tbptt"] and self.case["tbptt_accumulate"])
                if (self.begun[which] >= self.factor or is_last) and (each_steps or piece_idx == len(pieces) - 1):
                    self.close(which, step)
                    closed = True
        if closed:
            for which in selected:
                self.begun[which] = 0
            self.closed += 1

    def close(self, which, step):
        window, self.windows[which] = self.windows[which], []
        if not window:
            return
        self.exact = self.exact and len(window) == 1
        total = sum(weight for weight, _ in window)
        own = [self.net.w[which], self.net.u[which]]
        for index, parameter in enumerate(own):
            if len(window) == 1:
                parameter.grad = window[0][1][index]
            else:
                parameter.grad = sum(float(weight) * gradients[index] for weight, gradients in window) / float(total)
        if self.case["clip"] is not None:
            nn.utils.clip_grad_norm_(own, self.case["clip"])
        self.optimizers[which].step()
        self.global_step = step
        self.steps[which] += 1


@st.composite
def cases(draw):
    optimizers = draw(st.integers(1, 3))
    size = draw(st.integers(1, 6))
    accumulate = draw(
        st.one_of(st.integers(1, 4), st.dictionaries(st.integers(0, 2), st.integers(1, 4), min_size=1, max_size=2))
    )
    take_turns = optimizers > 1 and draw(st.booleans())
    return {
        "seed": draw(st.integers(0, 100)),
        "optimizers": optimizers,
        "frequencies": draw(st.lists(st.integers(1, 3), min_size=optimizers, max_size=optimizers))
        if take_turns
        else None,
        "times": draw(st.lists(st.integers(1, 6), min_size=size, max_size=size)),
        "epochs": draw(st.integers(1, 3)),
        "accumulate": accumulate,
        "limit": draw(st.one_of(st.none(), st.integers(1, 6))),
        "max_steps": draw(st.one_of(st.none(), st.integers(1, 8))),
        "clip": draw(st.one_of(st.none(), st.sampled_from([0.05, 0.5, 5.0]))),
        "tbptt": draw(st.one_of(st.none(), st.integers(1, 4))),
        "tbptt_accumulate": draw(st.booleans()),
        "none_every": draw(st.one_of(st.none(), st.integers(2, 5))),
        "weighted": draw(st.booleans()),
        "unsized": draw(st.booleans()),
        "adam": draw(st.booleans()),
    }


PLAIN = {
    "seed": 0,
    "optimizers": 2,
    "frequencies": None,
    "times": [3, 5, 2, 4, 6],
    "epochs": 2,
    "accumulate": 1,
    "limit": None,
    "max_steps": None,
    "clip": 0.05,
    "tbptt": 2,
    "tbptt_accumulate": False,
    "none_every": 4,
    "weighted": False,
    "unsized": True,
    "adam": True,
}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
@example(PLAIN)
@example(PLAIN | {"frequencies": [1, 2], "accumulate": {0: 2, 1: 3}, "tbptt_accumulate": True})
@example(PLAIN | {"frequencies": [2, 1], "accumulate": 2, "limit": 3, "tbptt": None, "weighted": True})
def test_any_combination_of_features_trains_as_a_loop_written_by_hand(case):
    net, global_step, steps = by_the_library(case)
    hand = ByHand(case).train()
    assert net.seen == hand.net.seen
    assert (global_step, steps) == (hand.global_step, hand.steps)
    for ours, theirs in zip(net.parameters(), hand.net.parameters(), strict=True):
        if hand.exact:
            assert torch.equal(ours, theirs)
        else:
            # By hand the gradients of a window are summed and divided at its end; the library seeds each backward with
            # its share. In float64 the two roundings stay far below 1e-6, also through Adam's division by small numbers.
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
