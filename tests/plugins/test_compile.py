import pickle
import shutil

import pytest
import torch
from torch import nn

from lightloop import Module, Trainer
from lightloop.testing import TinyClassifier, classification_batches

COMPILER = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)

pytestmark = [  # what torch's compiler says to itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def no_graphs_of_others():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def made(cls=TinyClassifier):
    torch.manual_seed(0)
    return cls()


def trained(module, **options):
    trainer = Trainer(["-*"], max_epochs=2, accumulate_grad_batches=2, **options)
    trainer.fit(module, classification_batches(4))
    return trainer


def graphs_of(monkeypatch):
    """The graphs that the backend ``eager`` is given from here on."""
    seen, compile = [], torch.compile

    def spy(function, backend, **options):
        def note(graph, inputs):
            seen.append(graph)
            return graph.forward

        return compile(function, backend=note if backend == "eager" else backend, **options)

    monkeypatch.setattr(torch, "compile", spy)
    return seen


def test_the_steps_are_compiled_and_train_to_the_same_bits(monkeypatch):
    seen = graphs_of(monkeypatch)
    ours, plain = made(), made()
    trainer = trained(ours, compile=True, compile_backend="eager")
    trained(plain)
    assert len(seen) == 1, "one graph up to the log, and none for the return after it"
    assert any(node.target is torch._C._nn.linear for node in seen[0].graph.nodes)
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert trainer.callback_metrics["loss"] == pytest.approx(trained(made()).callback_metrics["loss"])
    metrics = trainer.validate(ours, classification_batches(2))
    assert len(seen) == 2
    assert metrics == Trainer(["-*"]).validate(plain, classification_batches(2))


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler, which torch.compile needs on the CPU")
def test_it_really_compiles():
    class tiny(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def training_step(self, batch):
            return ((batch * self.w - 1).sin() ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    ours, plain, data = tiny(), tiny(), [torch.arange(8.0), torch.ones(8)]
    Trainer(["-*"], compile=True, compile_dynamic=False).fit(ours, data)
    Trainer(["-*"]).fit(plain, data)
    assert ours.w.item() == pytest.approx(plain.w.item(), rel=1e-5)
    assert ours.w.item() != 0


def test_the_module_is_as_before_after_any_end():
    module = made()
    before = {*vars(module), "_loop"}
    trained(module, compile=True, compile_backend="eager")
    assert set(vars(module)) == before

    class fails(TinyClassifier):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("the test says so")

    module = made(fails)
    module.validation_step = kept = lambda batch, batch_idx: None
    with pytest.raises(RuntimeError, match="the test says so"):
        trained(module, compile=True, compile_backend="eager")
    assert module.validation_step is kept
    assert "training_step" not in vars(module)


def test_a_step_that_is_no_single_graph_is_refused_when_asked():
    with pytest.raises(torch._dynamo.exc.Unsupported):
        trained(made(), compile=True, compile_backend="eager", compile_fullgraph=True)


def test_a_module_without_steps_is_refused():
    with pytest.raises(ValueError, match=r"compile=True: Linear has none of training_step, .* to compile"):
        Trainer(["-*"], compile=True).predict(nn.Linear(4, 2), [torch.ones(1, 4)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_mode": "fastest"}, r"compile_mode \(compile.mode\) must be one of default, .*; it is 'fastest'"),
        ({"compile_backend": "gcc"}, r"compile_backend \(compile.backend\) must be one of .*eager"),
        ({"compile_backend": "eager", "compile_mode": "default"}, "modes are inductor's"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Trainer(compile=True, **options)


def test_an_option_that_tunes_it_does_not_turn_it_on():
    with pytest.raises(TypeError, match="nothing turns that on: give compile"):
        Trainer(compile_mode="default")
    assert all(plugin.name != "compile" for plugin in Trainer(compile=False).plugins)


def test_it_pickles_after_a_run():
    trainer = trained(made(), compile=True, compile_backend="eager")
    assert pickle.loads(pickle.dumps(trainer)).plugin("compile").backend == "eager"
