"""What can be said of the horovod strategy where Horovod is not installed; tests/horovod has the rest."""

import pickle
from importlib.util import find_spec

import pytest

from lightloop import Trainer
from lightloop.testing import Probe, probe_batches


@pytest.mark.skipif(find_spec("horovod") is not None, reason="Horovod is installed")
def test_without_horovod_the_error_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install --no-build-isolation 'lightloop\[horovod\]'"):
        Trainer(strategy="horovod").fit(Probe(), probe_batches(1))


def test_it_takes_the_place_of_the_default_strategy_and_pickles():
    live = [plugin for plugin in Trainer(strategy="horovod").plugins if plugin.group == "strategy"]
    assert [plugin.name for plugin in pickle.loads(pickle.dumps(live))] == ["horovod"]


def strategies(*plugins, **options):
    return [plugin.name for plugin in Trainer(plugins, **options).plugins if plugin.group == "strategy"]


@pytest.mark.parametrize("elastic", [False, True])
def test_where_its_launcher_has_started_the_process_it_is_the_default(monkeypatch, elastic):
    assert strategies() == strategies(strategy="auto") == ["ddp"]
    environ = {"HOROVOD_ELASTIC": "1"} if elastic else {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert strategies() == strategies(strategy="auto") == strategies("-*", strategy="auto") == ["horovod"]
    assert strategies(horovod_scale_lr=True) == ["horovod"]
    assert strategies(strategy="ddp") == strategies(strategy=False) == strategies("ddp") == ["ddp"]
    assert strategies("-horovod") == ["ddp"]
    assert strategies("-*") == []


def test_another_strategy_in_processes_of_horovodrun_is_refused(monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    for options in ({"strategy": "ddp"}, {"strategy": "fsdp", "enable_checkpointing": False}):
        with pytest.raises(
            RuntimeError, match=r"horovodrun has started this process, and strategy='.*give strategy='hor"
        ):
            Trainer(**options).fit(Probe(), probe_batches(1))
    module = Probe()
    Trainer(["-*"], strategy=False).fit(module, probe_batches(1))
    assert len(module.seen) == 1
    monkeypatch.setenv("HOROVOD_SIZE", "1")
    assert strategies() == ["ddp"]


@pytest.mark.skipif(find_spec("horovod") is not None, reason="Horovod is installed")
def test_in_processes_of_horovodrun_that_lack_horovod_the_error_says_so(monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(ImportError, match=r"a process that horovodrun has started needs Horovod, .*pip install"):
        Trainer(["-progress", "-model_summary"]).fit(Probe(), probe_batches(1))


def test_nonsense_is_refused_at_construction():
    with pytest.raises(TypeError, match=r"horovod_compression \(horovod.compression\) must be"):
        Trainer(strategy="horovod", horovod_compression="zip")
    with pytest.raises(TypeError, match="nothing turns that on"):
        Trainer(horovod_scale_lr=True)
