import collections
import dataclasses
import pickle
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Recorder
from lightloop_plugins.tbptt import BATCH_LOSS, OUTPUTS
from lightloop_plugins.tbptt.cutting import cut


class Recurrent(Module):
    """An LSTM that foretells the next number; batches ``(batch, time, 1)``, or time first."""

    def __init__(self, batch_first=True, lr=0.1, optimizer=torch.optim.SGD):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(1, 4, batch_first=batch_first)
        self.head = nn.Linear(4, 1)
        self.lr, self.optimizer = lr, optimizer
        self.given, self.lengths = [], []

    def loss(self, x, hiddens):
        out, hiddens = self.rnn(x, hiddens)
        return (self.head(out) - x).square().mean(), hiddens

    def training_step(self, batch, hiddens):
        self.given.append(hiddens)
        self.lengths.append(tuple(batch.shape))
        loss, hiddens = self.loss(batch, hiddens)
        return {"loss": loss, "hiddens": hiddens}

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=self.lr)


def sequences(count=3, size=2, time=10):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, time, 1, generator=generator) for _ in range(count)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("time", "k", "lengths"), [(10, 4, [4, 4, 2]), (7, 3, [3, 3, 1])])
@pytest.mark.parametrize("batch_first", [True, False])
def test_c53_a_step_per_piece_with_the_state_carried_equals_a_plain_loop(time, k, lengths, batch_first):
    data = sequences(2, time=time)
    if not batch_first:
        data = [batch.transpose(0, 1).contiguous() for batch in data]
    module, plain = Recurrent(batch_first), Recurrent(batch_first)
    trainer = Trainer(truncated_bptt_steps=k, tbptt_time_dim=1 if batch_first else 0)
    result = trainer.fit(module, data)

    optimizer = plain.configure_optimizers()
    for batch in data:
        hiddens = None
        for piece in batch.split(k, dim=1 if batch_first else 0):
            loss, hiddens = plain.loss(piece, hiddens)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hiddens = tuple(state.detach() for state in hiddens)
    assert same(module, plain)
    assert (result.global_step, trainer.loop.total_batches, trainer.loop.total_pieces) == (6, 2, 6)
    assert [shape[1 if batch_first else 0] for shape in module.lengths] == lengths * 2
    assert [hiddens is None for hiddens in module.given] == [True, False, False] * 2
    assert not any(state.requires_grad for hiddens in module.given if hiddens for state in hiddens)


def test_c53_the_batch_loss_is_that_of_the_full_length_at_frozen_weights():
    module = Recurrent(lr=0.0)
    trainer = Trainer(truncated_bptt_steps=4)
    result = trainer.fit(module, sequences(1))
    full, _ = module.loss(sequences(1)[0], None)
    assert trainer.loop.stash[BATCH_LOSS].item() == pytest.approx(full.item(), rel=1e-6)  # another order of summing
    assert result.metrics["batch_loss"] == pytest.approx(full.item(), rel=1e-6)
    outputs = trainer.loop.stash[OUTPUTS]
    assert len(outputs) == 3
    assert not any(output["loss"].requires_grad for output in outputs)


@pytest.mark.parametrize("accumulate", [True, False])
def test_one_piece_equals_plain_bit_for_bit(accumulate):
    class plain_(Recurrent):
        def training_step(self, batch):
            return self.loss(batch, None)[0]

    module, plain = Recurrent(optimizer=torch.optim.Adam), plain_(optimizer=torch.optim.Adam)
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    Trainer(truncated_bptt_steps=10, tbptt_accumulate=accumulate, **options).fit(module, sequences(5))
    Trainer(**options).fit(plain, sequences(5))
    assert same(module, plain)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulated_over_pieces_equals_the_mean_over_the_full_length_with_detached_states(factor, clip):
    data = sequences(3, time=7)
    module, plain = Recurrent(), Recurrent()
    trainer = Trainer(
        truncated_bptt_steps=3, tbptt_accumulate=True, accumulate_grad_batches=factor, gradient_clip_val=clip
    )
    result = trainer.fit(module, data)

    optimizer = plain.configure_optimizers()
    for start in range(0, 3, factor):
        window = data[start : start + factor]
        optimizer.zero_grad()
        for batch in window:
            hiddens = None
            for piece in batch.split(3, dim=1):
                loss, hiddens = plain.loss(piece, hiddens)
                loss.backward(torch.tensor(float(Fraction(piece.shape[1], 7) / len(window))))
                hiddens = tuple(state.detach() for state in hiddens)
        if clip:
            nn.utils.clip_grad_norm_(plain.parameters(), clip)
        optimizer.step()
    assert same(module, plain)
    assert result.global_step == -(-3 // factor)


def test_the_accumulated_gradient_is_that_of_one_loss_over_the_full_length():
    batch = sequences(1)[0]
    module, plain = Recurrent(lr=1.0), Recurrent(lr=1.0)
    Trainer(truncated_bptt_steps=4, tbptt_accumulate=True).fit(module, [batch])
    hiddens, outs = None, []
    for piece in batch.split(4, dim=1):
        out, hiddens = plain.rnn(piece, hiddens)
        outs.append(plain.head(out))
        hiddens = tuple(state.detach() for state in hiddens)
    (torch.cat(outs, 1) - batch).square().mean().backward()
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)  # the pieces' means are summed in another order


def test_a_window_of_several_batches_closes_after_the_last_piece_of_its_last_batch():
    class steps(Plugin):
        name = "steps"

        def validate(self):
            self.at = []

        @hookimpl
        def after_step(self, loop):
            self.at.append((loop.batch_idx, loop.piece_idx))

    seen, module, plain = steps(), Recurrent(), Recurrent()
    Trainer(plugins=[seen], truncated_bptt_steps=4, accumulate_grad_batches=2).fit(module, sequences(3))
    assert seen.at == [(1, 2), (2, 2)]
    Trainer(truncated_bptt_steps=4, accumulate_grad_batches=2, tbptt_accumulate=True).fit(plain, sequences(3))
    assert same(module, plain)


def test_a_schedule_that_does_not_accumulate_steps_each_piece():
    module, plain = Recurrent(), Recurrent()
    result = Trainer(truncated_bptt_steps=4, accumulate_grad_batches={0: 1, 1: 2}).fit(module, sequences(3))
    Trainer(truncated_bptt_steps=4).fit(plain, sequences(3))
    assert result.global_step == 9
    assert same(module, plain)


def test_pieces_without_loss_leave_the_mean_to_the_others():
    class skips(Recurrent):
        def training_step(self, batch, hiddens):
            output = super().training_step(batch, hiddens)
            return None if len(self.given) == 2 else output

    module, plain = skips(), Recurrent()
    Trainer(truncated_bptt_steps=4, tbptt_accumulate=True).fit(module, sequences(1))
    first, _, last = sequences(1)[0].split(4, dim=1)
    loss, hiddens = plain.loss(first, None)
    loss.backward(torch.tensor(4 / 6))
    plain.loss(last, tuple(state.detach() for state in hiddens))[0].backward(torch.tensor(2 / 6))
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)  # 0.4, then corrected by 10 / 6: rounded twice


def test_a_weight_of_the_users_own_is_kept():
    class weighs(Recurrent):
        def training_step(self, batch, hiddens):
            return super().training_step(batch, hiddens) | {"weight": 1.0}

    module, plain = weighs(), Recurrent()
    Trainer(truncated_bptt_steps=4, tbptt_accumulate=True).fit(module, sequences(1))
    hiddens = None
    for piece in sequences(1)[0].split(4, dim=1):
        loss, hiddens = plain.loss(piece, hiddens)
        (loss / 3).backward()
        hiddens = tuple(state.detach() for state in hiddens)
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)  # summed, then divided by 3


def test_max_steps_ends_a_run_inside_a_batch():
    module = Recurrent()
    result = Trainer(truncated_bptt_steps=4, max_steps=4).fit(module, sequences(3))
    assert (result.global_step, len(module.given)) == (4, 4)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, None), ({"tbptt_accumulate": True}, 8), ({"accumulate_grad_batches": 2}, 4), ({"max_steps": 5}, 5)],
)
def test_the_steps_to_come_are_unknown_where_each_piece_steps(options, steps):
    told = []

    class Asking(Recurrent):
        def configure_optimizers(self):
            told.append(self.loop.total_steps)
            return super().configure_optimizers()

    trainer = Trainer(["-*"], truncated_bptt_steps=4, max_epochs=2, **options)
    trainer.fit(Asking(), sequences(4))
    assert told == [steps]
    assert trainer.global_step == (steps or 24)


def test_each_optimizer_has_a_state_of_its_own():
    class two(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(2))
            self.given = []

        def training_step(self, batch, batch_idx, optimizer_idx, hiddens):
            self.given.append(hiddens)
            loss = (batch * self.w[optimizer_idx]).mean()
            return {"loss": loss, "hiddens": {"who": optimizer_idx, "seen": [loss], "batch": batch_idx}}

        def configure_optimizers(self):
            return [torch.optim.SGD([w], lr=0.1) for w in self.w]

    module = two()
    trainer = Trainer(truncated_bptt_steps=2)
    result = trainer.fit(module, [torch.ones(1, 5)] * 2)
    assert [hiddens and (hiddens["batch"], hiddens["who"]) for hiddens in module.given] == (
        [None, None, (0, 0), (0, 1), (0, 0), (0, 1), None, None, (1, 0), (1, 1), (1, 0), (1, 1)]
    )
    assert (result.global_step, trainer.loop.optimizer_steps) == (6, [6, 6])
    assert {"batch_loss_0", "batch_loss_1"} <= set(result.metrics)

    module = two()
    Trainer(truncated_bptt_steps=2, optimizer_frequencies=[1, 1]).fit(module, [torch.ones(1, 5)] * 2)
    assert [hiddens and hiddens["who"] for hiddens in module.given] == [None, 0, 0, None, 1, 1]


def test_manual_optimization_is_given_the_state_too():
    class manual_(Recurrent):
        automatic_optimization = False

        def training_step(self, batch, hiddens, loop):
            output = super().training_step(batch, hiddens)
            loop.optimizers[0].zero_grad()
            output["loss"].backward()
            loop.optimizers[0].step()
            return output

    module, automatic = manual_(), Recurrent()
    for each in (module, automatic):
        assert Trainer(truncated_bptt_steps=4).fit(each, sequences(2)).global_step == 6
    assert same(module, automatic)


def test_precision_goes_with_it():
    module = Recurrent()
    assert Trainer(truncated_bptt_steps=4, precision="bf16-mixed").fit(module, sequences(1)).global_step == 3
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


def test_the_events_of_a_batch_in_order():
    events = Recorder()
    Trainer(plugins=["-*", events], truncated_bptt_steps=5).fit(Recurrent(), sequences(1))
    begin = events.events.index("split_batch")
    piece = [
        "select_optimizers",
        "hold_step",
        "forward",
        "after_forward",
        "before_backward",
        "backward",
        "after_backward",
        "reduce_gradients",
        "unscale_gradients",
        "before_step",
        "step",
        "after_step",
        "zero_grad",
    ]
    assert events.events[begin : begin + 28] == ["split_batch", *piece, *piece, "after_batch"]


# ------------------------------------------------------------------------------------------------------ what is cut


@dataclasses.dataclass(frozen=True)
class Record:
    text: torch.Tensor
    name: str


Pair = collections.namedtuple("Pair", "x y")


def test_containers_keep_their_types_and_what_has_no_time_is_in_every_piece():
    x = torch.arange(12).reshape(2, 6)
    batch = {
        "tuple": (x, [x]),
        "pair": Pair(x, 1),
        "record": Record(x, "n"),
        "counts": collections.Counter(),
        "ordered": collections.OrderedDict(x=x),
        "default": collections.defaultdict(list, x=x),
        "array": x.numpy(),
        "none": None,
        "ids": ["a", "b"],
        "sizes": [6, 6],
    }
    pieces = cut(batch, 4, 1)
    assert (len(pieces.pieces), pieces.steps) == (2, [4, 2])
    for piece, part in zip(pieces.pieces, (x[:, :4], x[:, 4:]), strict=True):
        assert list(piece) == list(batch)
        assert [type(value) for value in piece.values()] == [type(value) for value in batch.values()]
        assert piece["default"].default_factory is list
        found = [piece["tuple"][0], piece["tuple"][1][0], piece["pair"].x, piece["record"].text]
        found += [piece["ordered"]["x"], piece["default"]["x"], torch.as_tensor(piece["array"])]
        assert all(torch.equal(each, part) for each in found)
        assert (piece["pair"].y, piece["record"].name, piece["none"], piece["ids"], piece["sizes"]) == (
            1,
            "n",
            None,
            ["a", "b"],
            [6, 6],
        )


def test_time_dimensions_by_path():
    batch = {"inputs": {"text": torch.zeros(7, 2, 3)}, "y": torch.zeros(2, 7), "label": torch.zeros(2), "w": [None]}
    pieces = cut(batch, 3, {"inputs.text": 0, "label": None})
    assert [piece["inputs"]["text"].shape for piece in pieces.pieces] == [(3, 2, 3), (3, 2, 3), (1, 2, 3)]
    assert [piece["y"].shape for piece in pieces.pieces] == [(2, 3), (2, 3), (2, 1)]
    assert all(piece["label"] is batch["label"] for piece in pieces.pieces)
    last = cut((torch.zeros(2, 3, 7), torch.zeros(2)), 4, {"0": -1, "1": None})
    assert [piece[0].shape for piece in last.pieces] == [(2, 3, 4), (2, 3, 3)]


def test_ragged_lists_are_cut_row_by_row():
    rows = [torch.arange(5), torch.arange(3), torch.arange(1)]
    numbers = [[1, 2, 3, 4, 5], [6, 7, 8], [9]]
    pieces = cut({"x": rows, "y": numbers}, 2, 1)
    assert [[row.tolist() for row in piece["x"]] for piece in pieces.pieces] == [
        [[0, 1], [0, 1], [0]],
        [[2, 3], [2], []],
        [[4], [], []],
    ]
    assert [piece["y"] for piece in pieces.pieces] == [[[1, 2], [6, 7], [9]], [[3, 4], [8], []], [[5], [], []]]
    assert pieces.steps == [5, 3, 1]
    wide = cut([torch.zeros(4, 3), torch.zeros(2, 3)], 3, {"": 0})
    assert [[tuple(row.shape) for row in piece] for piece in wide.pieces] == [[(3, 3), (2, 3)], [(1, 3), (0, 3)]]


@pytest.mark.parametrize("lengths", [[5, 3, 2], [2, 5, 3], [4, 4, 4], [1, 6]])
def test_packed_sequences_are_cut_with_their_order(lengths):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(length, 2, generator=generator) for length in lengths]
    packed = pack_sequence(rows, enforce_sorted=False)
    pieces = cut(packed, 2, 1)
    assert sum(pieces.steps) == sum(lengths)
    for start, piece in zip(range(0, 9, 2), pieces.pieces, strict=False):
        assert isinstance(piece, PackedSequence)
        here = [row[start : start + 2] for row in rows if len(row) > start]
        padded, sizes = pad_packed_sequence(piece, batch_first=True)
        assert sizes.tolist() == [len(row) for row in here]
        for row, found, size in zip(here, padded, sizes, strict=True):
            assert torch.equal(found[:size], row)


@pytest.mark.parametrize("lengths", [[5, 3, 2], [2, 5, 3], [3, 3], [1, 6, 4, 4]])
def test_packed_input_trains_like_each_sequence_by_itself(lengths):
    class packed_(Recurrent):
        def __init__(self):
            super().__init__(lr=1.0)

        def training_step(self, batch, hiddens):
            out, hiddens = self.rnn(batch, hiddens)
            return {"loss": (self.head(out.data) - batch.data).square().mean(), "hiddens": hiddens}

    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(length, 1, generator=generator) for length in lengths]
    module, plain = packed_(), packed_()
    Trainer(truncated_bptt_steps=2, tbptt_accumulate=True).fit(module, [pack_sequence(rows, enforce_sorted=False)])
    for row in rows:
        hiddens = None
        for piece in row.split(2):
            out, hiddens = plain.rnn(piece[None], hiddens)
            ((plain.head(out) - piece[None]).square().sum() / sum(lengths)).backward()
            hiddens = tuple(state.detach() for state in hiddens)
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # batched, the sums run in another order


@pytest.mark.parametrize(
    ("batch", "dims", "message"),
    [
        ({"x": torch.zeros(2, 6), "y": torch.zeros(2, 5)}, 1, "equally many time steps: 6 in 'x', 5 in 'y'"),
        ({"x": torch.zeros(2, 6), "y": torch.zeros(2)}, 1, r"'y' of shape \(2,\) has no dimension 1"),
        ([torch.zeros(4, 3), torch.zeros(2, 3)], 1, "equally many sequences along dimension 0: 4 in '0', 2 in '1'"),
        ({"x": torch.zeros(2, 6)}, {"z": 1}, "names 'z', which is no tensor or list in the batch"),
        (["a", "b"], 1, "nothing with a time dimension in a batch of list"),
    ],
)
def test_a_time_that_cannot_be_known_is_an_error(batch, dims, message):
    with pytest.raises(ValueError, match=message):
        cut(batch, 2, dims)


def test_the_module_may_cut():
    class own(Recurrent):
        def tbptt_split_batch(self, batch, split_size):
            assert split_size == 4
            return [batch[:, :1], batch[:, 1:]]

    module = own(lr=0.0)
    trainer = Trainer(truncated_bptt_steps=4)
    assert trainer.fit(module, sequences(1)).global_step == 2
    assert [shape[1] for shape in module.lengths] == [1, 9]
    full, _ = Recurrent().loss(sequences(1)[0], None)
    assert trainer.loop.stash[BATCH_LOSS].item() == pytest.approx(full.item(), rel=1e-6)


# ------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "options",
    [
        {"truncated_bptt_steps": 0},
        {"truncated_bptt_steps": -1},
        {"truncated_bptt_steps": True},
        {"truncated_bptt_steps": 2.0},
        {"truncated_bptt_steps": 2, "tbptt_time_dim": {"x": "1"}},
        {"truncated_bptt_steps": 2, "tbptt_time_dim": True},
    ],
)
def test_nonsense_is_refused_at_construction(options):
    with pytest.raises((ValueError, TypeError), match=list(options)[-1]):
        Trainer(**options)


def test_options_that_tune_nothing_are_refused():
    with pytest.raises(TypeError, match="nothing turns that on: give truncated_bptt_steps"):
        Trainer(tbptt_accumulate=True)
    assert "tbptt" not in {plugin.name for plugin in Trainer(truncated_bptt_steps=None).plugins}


@pytest.mark.parametrize("returned", ["tensor", "mapping"])
def test_a_missing_state_is_an_error(returned):
    class forgets(Recurrent):
        def training_step(self, batch, hiddens):
            loss = super().training_step(batch, hiddens)["loss"]
            return loss if returned == "tensor" else {"loss": loss, "hidden": 1}

    found = "Tensor" if returned == "tensor" else "the keys loss, hidden"
    with pytest.raises(ValueError, match=f"must return .*'hiddens'.*; it returned {found}"):
        Trainer(truncated_bptt_steps=4).fit(forgets(), sequences(1))


def test_a_step_that_does_not_take_the_state_is_an_error():
    class deaf(Recurrent):
        def training_step(self, batch):
            return super().training_step(batch, None)

    with pytest.raises(TypeError, match=r"deaf.training_step does not take"):
        Trainer(truncated_bptt_steps=4).fit(deaf(), sequences(1))
    with pytest.raises(
        TypeError, match="there is no argument 'hiddens': plugin 'tbptt' offers it and is not in this run"
    ):
        Trainer().fit(Recurrent(), sequences(1))


def test_closures_are_refused():
    with pytest.raises(ValueError, match="cannot be had with LBFGS"):
        Trainer(truncated_bptt_steps=4).fit(Recurrent(optimizer=torch.optim.LBFGS), sequences(1))


def test_it_pickles_after_a_run_and_holds_no_batch():
    trainer = Trainer(truncated_bptt_steps=4)
    trainer.fit(Recurrent(), sequences(2))
    again = pickle.loads(pickle.dumps(trainer))
    assert again.fit(Recurrent(), sequences(1)).global_step == 3
    (plugin,) = [plugin for plugin in trainer.plugins if plugin.name == "tbptt"]
    assert not plugin._pieces.pieces
    assert not plugin._hidden
