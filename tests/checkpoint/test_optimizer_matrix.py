"""Every optimizer that can be had: its state is saved and loaded to the bit, or refused when it is saved."""

import importlib
from collections import OrderedDict, deque

import numpy
import pytest
import torch
from torch.optim import Optimizer

from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.format.tree import decode, encode
from lightloop_plugins.checkpoint.state import optimizers, proof
from tests.checkpoint.optimizer_rig import Net, assert_resumes, fit
from tests.checkpoint.rig import bits

TORCH = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"lr": torch.tensor(0.01)},
    "Adamax": {},
    "ASGD": {},
    "LBFGS": {"history_size": 7, "line_search_fn": "strong_wolfe"},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"lr": 0.01, "momentum": 0.9},
}


def test_every_dense_optimizer_of_torch_is_here():
    known = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type) and issubclass(kind, Optimizer)}
    assert known - {"Optimizer", "SparseAdam", "Muon"} == set(TORCH)


@pytest.mark.parametrize("name", TORCH)
def test_torchs_own(tmp_path, name):
    assert_resumes(tmp_path, lambda module: getattr(torch.optim, name)(module.parameters(), **TORCH[name]))


@pytest.mark.parametrize("fused", [{"foreach": True}, {"fused": True}, {"capturable": False, "maximize": True}])
def test_the_ways_in_which_adam_is_computed(tmp_path, fused):
    assert_resumes(tmp_path, lambda module: torch.optim.Adam(module.parameters(), **fused))


def test_a_history_that_is_larger_than_the_parameter_that_holds_it(tmp_path):
    """LBFGS keeps all directions, each of the length of all parameters, with the first one."""
    assert_resumes(
        tmp_path,
        lambda module: torch.optim.LBFGS(module.parameters(), history_size=70),
        net=lambda make: Net(make, 64),
        at=(8,),
    )


class Kept(Optimizer):
    """SGD that keeps whatever a test hands it with each parameter, and by a name beside them."""

    value = None

    def __init__(self, parameters, **defaults):
        super().__init__(parameters, {"lr": 0.01, **defaults})

    def step(self, closure=None):
        self.state.setdefault("k", torch.tensor([0], dtype=torch.int64)).add_(1)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("kept", type(self).value())
                parameter.data.sub_(parameter.grad, alpha=group["lr"])


def keeps(make, **attributes):
    return type("Kept", (Kept,), {"value": staticmethod(make), **attributes})


VALUES = {
    "a text": lambda: "warm",
    "a tuple": lambda: (1, torch.ones(2, dtype=torch.float64)),
    "a bounded deque": lambda: deque([torch.ones(2, dtype=torch.float64), 3], 5),
    "a deque of texts": lambda: deque(["a", "b"]),
    "a matrix for a bias": lambda: torch.eye(40, dtype=torch.float64),
    "whole numbers": lambda: torch.arange(3),
    "a dict by number": lambda: {1: torch.ones(1), "a": [None, True]},
    "an ordered dict": lambda: OrderedDict([("b", 1), ("a", torch.ones(1, dtype=torch.bfloat16))]),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "bytes": lambda: b"ab",
    "a number of numpy's": lambda: numpy.float32(0.1),
    "a double of numpy's": lambda: numpy.float64(0.1),
    "a shape": lambda: torch.Size([2, 3]),
    "sparse": lambda: torch.eye(3).to_sparse(),
}


@pytest.mark.filterwarnings("ignore:.*Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", VALUES)
def test_whatever_it_keeps_comes_back_as_it_was(tmp_path, name):
    assert_resumes(tmp_path, lambda module: keeps(VALUES[name])(module.parameters()))


REFUSED = {
    "an object": (object, r"optimizer 0 \(Kept\).*kept: builtins.object cannot be stored"),
    "a function": (lambda: len, r"optimizer 0 \(Kept\).*kept: builtins.builtin_function_or_method cannot be stored"),
    "an array of numpy's": (lambda: numpy.ones(3), r"optimizer 0 \(Kept\).*its load_state_dict refuses"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_come_back_is_refused_when_it_is_saved(tmp_path, name):
    value, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message):
        fit(tmp_path, lambda module: keeps(value)(module.parameters()))


def test_a_state_that_changes_its_form_is_looked_at_again(tmp_path):
    class Later(Kept):
        @staticmethod
        def value():
            return 0

        def step(self, closure=None):
            super().step()
            for its in self.state.values():
                if isinstance(its, dict) and int(self.state["k"]) == 3:
                    its["kept"] = object()

    with pytest.raises(CheckpointError, match="cannot be stored"):
        fit(tmp_path, lambda module: Later(module.parameters()))
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("step-")]) == 2


def test_a_state_dict_that_its_own_load_refuses(tmp_path):
    def refuse(self, state):
        raise KeyError("momentum")

    make = keeps(lambda: 1, load_state_dict=refuse)
    with pytest.raises(
        CheckpointError, match="load_state_dict refuses what its state_dict gives: KeyError: 'momentum'"
    ):
        fit(tmp_path, lambda module: make(module.parameters()))


def test_it_is_a_warning_where_saves_may_fail(tmp_path):
    last = pytest.raises(CheckpointError, match="the last save failed")
    with last, pytest.warns(UserWarning, match="cannot be stored.*Training goes on"):
        fit(tmp_path, lambda module: keeps(object)(module.parameters()), on_save_error="warn", save_every="6 batches")


def test_the_proof_touches_neither_the_optimizer_nor_what_it_wraps(tmp_path):
    class Wrapper(Kept):
        """Its state is that of another optimizer, which it has beside it."""

        def __init__(self, parameters):
            super().__init__(parameters)
            self.inner = torch.optim.Adam(self.param_groups)
            self.param_groups = self.inner.param_groups

        def step(self, closure=None):
            self.inner.step()

        def state_dict(self):
            return {**self.inner.state_dict(), "beside": 1}

        def load_state_dict(self, state):
            self.inner.load_state_dict(state)
            self.param_groups = self.inner.param_groups

    assert_resumes(tmp_path, lambda module: Wrapper(module.parameters()))


def optimizers_of(name):
    """The optimizers of an installed package, by name."""
    package = importlib.import_module(name)
    found = {key: kind for key, kind in vars(package).items() if isinstance(kind, type) and issubclass(kind, Optimizer)}
    return {key: kind for key, kind in found.items() if kind is not Optimizer and not key.startswith("_")}


class Stopped:
    """Steps by hand, in the middle of which the state is stored, proved and loaded into a new optimizer."""

    def __init__(self, kind):
        torch.manual_seed(0)
        self.net = Net(None)
        self.optimizer = kind(self.net.parameters())

    def step(self, count):
        torch.manual_seed(count)
        for n in range(count):
            x = torch.sin(torch.arange(24.0) + n).reshape(4, 6)

            def closure(x=x):
                self.optimizer.zero_grad()
                loss = self.net.body(x).square().mean()
                loss.backward(create_graph=type(self.optimizer).__name__ in ("AdaHessian", "Adahessian", "SophiaH"))
                return loss

            if type(self.optimizer).__name__ == "LBFGS":
                self.optimizer.step(closure)
            else:
                closure()
                self.optimizer.step()

    def taken(self):
        return {"class": "", "groups": [], "state": self.optimizer.state_dict()}


def goes_on(kind):
    """Whether a state that was stored and loaded goes on as the one that was not; None where it was refused."""
    whole, first, second = (Stopped(kind) for _ in range(3))
    for each in (whole, first):
        each.step(3)
    try:
        proof.prove([first.optimizer], [first.taken()])
    except CheckpointError:
        return None
    tensors = {}
    stored = decode(encode(first.taken(), tensors), tensors)
    second.net.load_state_dict(first.net.state_dict())
    optimizers.load(second.optimizer, optimizers.cloned(stored["state"]))
    for each in (whole, second):
        each.step(3)
    return bits(dict(second.net.state_dict())) == bits(dict(whole.net.state_dict()))


@pytest.mark.torture
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["torch.optim", "torch_optimizer", "pytorch_optimizer", "schedulefree"])
def test_those_of_others(package):
    """Each goes on to the bit, or is refused when it is saved; what cannot train here is left out."""
    pytest.importorskip(package)
    found = {}
    for name, kind in optimizers_of(package).items():
        try:
            Stopped(kind).step(4)
        except Exception:
            continue  # it needs more than parameters
        found[name] = goes_on(kind)
    print(package, len(found), "refused:", [name for name, went in found.items() if went is None])
    assert [name for name, went in found.items() if went is False] == []
    assert found
