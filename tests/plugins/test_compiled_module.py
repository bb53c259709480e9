import pickle

import pytest
import torch
from torch import nn

from lightloop import Trainer
from lightloop.testing import TinyClassifier, classification_batches


@pytest.fixture(autouse=True)
def no_graphs_of_others():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def compiled():
    """A module, what torch.compile makes of it, and the graphs that are run."""
    runs = []

    def backend(graph, inputs):
        def run(*arguments):
            runs.append(graph)
            return graph.forward(*arguments)

        return run

    torch.manual_seed(0)
    module = TinyClassifier()
    return module, torch.compile(module, backend=backend), runs


def test_the_calls_of_the_module_are_compiled_and_it_trains_to_the_same_bits(compiled):
    module, wrapper, runs = compiled
    trainer = Trainer(max_epochs=2, enable_progress_bar=False, logger=False)
    trainer.fit(wrapper, classification_batches(3), classification_batches(2))
    assert len(runs) == 2 + 2 * (3 + 2)  # a sanity pass, and two epochs
    (logits,) = trainer.predict(wrapper, [torch.ones(1, 4)])
    assert len(runs) == 13
    torch.manual_seed(0)
    plain = TinyClassifier()
    Trainer(["-*"], max_epochs=2).fit(plain, classification_batches(3))
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(logits, plain(torch.ones(1, 4)))
    pickle.dumps(trainer)


def test_checkpoints_have_the_names_of_the_module(compiled, tmp_path):
    module, wrapper, _ = compiled
    trainer = Trainer(checkpoint_dir=tmp_path, enable_progress_bar=False, logger=False)
    trainer.fit(wrapper, classification_batches(3))
    torch.manual_seed(1)
    plain = TinyClassifier()
    again = Trainer(checkpoint_dir=tmp_path, enable_progress_bar=False, logger=False, resume=tmp_path, max_epochs=1)
    again.fit(plain, classification_batches(3))
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_both_are_as_before_after_any_end(compiled):
    module, wrapper, runs = compiled
    module.training_step = lambda batch: nn.functional.mse_loss(batch, "text")
    with pytest.raises(AttributeError):
        Trainer(["-*", "compiled_module"]).fit(wrapper, [torch.ones(1, 4)])
    assert module._compiled_call_impl is None
    assert wrapper._orig_mod is module
    module(torch.ones(1, 4))
    assert runs == []
