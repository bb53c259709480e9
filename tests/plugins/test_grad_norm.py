import pickle

import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches


class Two(Module):
    """The gradients of ``w`` and ``v`` are the two halves of the batch."""

    def __init__(self):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))

    def training_step(self, batch):
        return (self.w * batch[:2]).sum() + (self.v * batch[2:]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Rows(Plugin):
    name = "rows"

    def validate(self):
        self.rows = []

    @hookimpl
    def after_batch(self, loop):
        if loop.stepped:
            self.rows.append(loop.metrics.take_step())


BATCH = torch.tensor([3.0, 4.0, 12.0])


def rows(batches, module=None, plugins=(), **options):
    kept = Rows()
    Trainer(["-*", kept, *plugins], **options).fit(module or Two(), batches)
    return kept.rows


@pytest.mark.parametrize(
    ("p", "key", "values"),
    [
        (2, "2.0", (13.0, 5.0, 12.0)),
        (2.0, "2.0", (13.0, 5.0, 12.0)),
        (1, "1.0", (19.0, 7.0, 12.0)),
        (3, "3.0", (1819 ** (1 / 3), 91 ** (1 / 3), 12.0)),
        (0.5, "0.5", ((3**0.5 + 2 + 12**0.5) ** 2, (3**0.5 + 2) ** 2, 12.0)),
        ("inf", "inf", (12.0, 4.0, 12.0)),
        (float("inf"), "inf", (12.0, 4.0, 12.0)),
    ],
)
def test_total_and_each_parameter_for_any_p(p, key, values):
    names = [f"grad_{key}_norm_{name}" for name in ("total", "w", "v")]
    assert rows([BATCH], track_grad_norm=p) == [pytest.approx(dict(zip(names, values, strict=True)), rel=1e-6)]


def test_one_point_per_step_of_the_whole_window_before_clipping():
    batches = [BATCH, BATCH * 3, BATCH]
    found = rows(
        batches, track_grad_norm=2, grad_norm_per_parameter=False, accumulate_grad_batches=2, gradient_clip_val=1
    )
    assert [row["grad_2.0_norm_total"] for row in found] == [26.0, 13.0]


def test_what_clipping_leaves():
    (row,) = rows([BATCH], track_grad_norm=2, grad_norm_clipped=True, gradient_clip_val=1.3)
    assert row["grad_2.0_norm_total_clipped"] == pytest.approx(1.3)
    assert row["grad_2.0_norm_w_clipped"] == pytest.approx(0.5)
    assert row["grad_2.0_norm_total"] == row["grad_norm"] == 13.0


def test_c11_the_norm_is_the_one_that_clips():
    """One pass for the total, which clipping uses, and one for the parts."""
    asked = []

    class Asked(Plugin):
        name = "asked"

        @hookimpl(wrapper=True)
        def grad_norm(self, loop, norm_type):
            asked.append(norm_type)
            return (yield)

    rows([BATCH] * 3, plugins=[Asked()], track_grad_norm=2, gradient_clip_val=1.0, terminate_on_nan=True)
    assert asked == [2.0, 2.0, 2.0]


def test_several_optimizers_do_not_overwrite_one_another():
    class Halves(Two):
        def training_step(self, batch, optimizer_idx):
            return (self.w * batch[:2]).sum() if optimizer_idx == 0 else (self.v * batch[2:]).sum()

        def configure_optimizers(self):
            return [torch.optim.SGD([self.w], lr=1.0), torch.optim.SGD([self.v], lr=1.0)]

    assert rows([BATCH], Halves(), track_grad_norm=2) == [
        {
            "grad_2.0_norm_total/optimizer_0": 5.0,
            "grad_2.0_norm_w/optimizer_0": 5.0,
            "grad_2.0_norm_total/optimizer_1": 12.0,
            "grad_2.0_norm_v/optimizer_1": 12.0,
        }
    ]


def test_a_step_that_is_not_taken_leaves_no_point():
    class Veto(Plugin):
        name = "veto"

        @hookimpl
        def before_step(self, loop):
            if loop.batch_idx == 0:
                loop.skip_step("the first")

    found = rows([BATCH * 100, BATCH], plugins=[Veto()], track_grad_norm=2, grad_norm_per_parameter=False)
    assert found == [{"grad_2.0_norm_total": 13.0}]


def test_full_precision_against_torch():
    torch.manual_seed(0)
    module = TinyClassifier()
    data = classification_batches(4)
    found = rows(data, module, track_grad_norm=2)
    torch.manual_seed(0)
    plain = TinyClassifier()
    optimizer = plain.configure_optimizers()
    for row, (x, y) in zip(found, data, strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        gradients = [p.grad for p in plain.parameters()]
        assert row["grad_2.0_norm_total"] == nn.utils.get_total_norm(gradients).item()
        for name, parameter in plain.named_parameters():
            assert row[f"grad_2.0_norm_{name}"] == parameter.grad.norm().item()
        optimizer.step()


def test_sparse_and_empty_gradients():
    class Sparse(Module):
        def __init__(self):
            super().__init__()
            self.table, self.empty = nn.Embedding(5, 1, sparse=True), nn.Parameter(torch.zeros(0))

        def training_step(self, batch):
            return self.table(batch).sum() + self.empty.sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    for p, total in ((2, 5**0.5), ("inf", 2.0)):
        (row,) = rows([torch.tensor([1, 1, 3])], Sparse(), track_grad_norm=p)
        assert row == pytest.approx({f"grad_{float(p)}_norm_total": total, f"grad_{float(p)}_norm_table.weight": total})


def test_the_style_of_the_keys():
    (row,) = rows([BATCH], track_grad_norm=2, grad_norm_key="gradients/{name}")
    assert list(row) == ["gradients/total", "gradients/w", "gradients/v"]
    for key in ("gradients", "{p}", "{other}{name}", "{name"):
        with pytest.raises(ValueError, match=r"grad_norm_key \(grad_norm.metric\) must be a text with {name} in it"):
            Trainer(track_grad_norm=2, grad_norm_key=key)


@pytest.mark.parametrize("p", [0, -2, -1.5, "2", "infinity", "", float("nan"), float("-inf")])
def test_nonsense_is_refused_at_construction(p):
    with pytest.raises(ValueError, match=r"track_grad_norm \(grad_norm.norm_type\) must be a number above 0, or 'inf'"):
        Trainer(track_grad_norm=p)


def test_off_by_default():
    assert "grad_norm" not in [plugin.name for plugin in Trainer(track_grad_norm=-1).plugins]


def test_it_pickles_after_a_run():
    trainer = Trainer(["-*"], track_grad_norm="inf")
    trainer.fit(Two(), [BATCH])
    pickle.loads(pickle.dumps(trainer)).fit(Two(), [BATCH])


def test_the_style_of_the_keys_is_not_the_plugins_own_key():
    plugin = Trainer(track_grad_norm=2, grad_norm_key="gradients/{name}").plugin("grad_norm")
    assert plugin.key == "grad_norm"
