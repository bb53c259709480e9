"""The tests that every plugin passes: subclass :class:`PluginContract` in a test file."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from lightloop import Plugin, Trainer
from lightloop.host.discovery import GROUP
from lightloop.host.listing import Entry
from lightloop.host.local import LOCAL
from lightloop.host.options import OPTION, options_of
from lightloop.host.plugin_state import undeclared
from lightloop.operations import manage
from lightloop.testing import probes
from lightloop.testing.imports import import_without_optional
from lightloop.testing.models import TinyClassifier, classification_batches
from lightloop.testing.ranks import run_ranks, values_of
from lightloop.testing.resuming import Resuming
from lightloop.testing.syncs import count_syncs
from lightloop.toolkit import discover

LASTING = ("signal handlers", "threads", "hooks of the module", "open files", "settings of torch", "standard streams")
"""What must be after a run as before it."""
SAVING = ("checkpoint", "duration", "resume", "run_dir")
"""The plugins by which a run is saved and gone on with."""


class PluginContract:
    """Holds one plugin to what every plugin owes the others; a test class by inheritance.

    .. code-block:: python

        class TestMine(PluginContract):
            plugin = "mine"
            options = {"factor": 2.0}

    What a plugin changes on purpose it says itself, in ``Plugin.disturbs``.
    """

    plugin: ClassVar[str | type[Plugin]]
    """The plugin: its name, if it is installed, or its class."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Constructor arguments with which it does what it is for."""
    others: ClassVar[Sequence[Entry]] = ()
    """Plugins that it needs beside it; what it ``requires`` is added by name."""
    trainer: ClassVar[Mapping[str, Any]] = {}
    """Further keywords of the Trainer."""
    resumes: ClassVar[bool] = True
    """Whether a run with it can be saved and gone on with."""
    unsteady: ClassVar[tuple[str, ...]] = ()
    """Patterns of what no two runs have in common, such as times: ``plugins.mine.seconds``, ``*.mine/per_second``."""
    boundaries: ClassVar[int | None] = 3
    """At how many boundaries between batches, of six, a run is killed and resumed; None is all, 0 leaves that test out."""
    processes: ClassVar[int] = 2
    """In how many processes it is run together; 1 leaves that test out."""
    cannot_run: ClassVar[str | None] = None
    """Why it cannot be run here, such as for want of a device; tests that need a run are then skipped, for this reason."""

    # ------------------------------------------------------------------------------------------------- what it needs

    @pytest.fixture(autouse=True)
    def _aside(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Runs in a folder of their own; what one test leaves behind, another does not find."""
        monkeypatch.setenv("LIGHTLOOP_RUNS", str(tmp_path / "runs"))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        dtype = torch.get_default_dtype()
        yield
        torch.set_default_dtype(dtype)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def kind(self) -> type[Plugin]:
        """The plugin's class."""
        if not isinstance(self.plugin, str):
            return self.plugin
        found = discover().get(self.plugin)
        assert found is not None, f"no plugin {self.plugin!r} is installed"
        assert found.plugin is not None, f"plugin {found} {found.problem}"
        return found.plugin

    def make(self) -> Plugin:
        """A new plugin with the options of this contract."""
        return self.kind()(**self.options)

    def module(self) -> nn.Module:
        """A new module to train, the same each time."""
        torch.manual_seed(0)
        return TinyClassifier()

    def data(self, batches: int = 2) -> Any:
        """What it is trained on: so many batches."""
        return classification_batches(batches)

    def same_state(self, one: Any, other: Any) -> bool:
        """Whether two states are the same, to the bit; override it where something, such as a time, cannot be."""
        return probes.same(one, other)

    def made(self, *plugins: Entry, **options: Any) -> Trainer:
        """A Trainer with the plugin's company, ``plugins`` and nothing else."""
        if self.cannot_run is not None:
            pytest.skip(f"it cannot be run here: {self.cannot_run}")
        installed = discover()
        needed = [name for name in self.kind().requires if name in installed]
        listed = [*needed, *(entry for entry in self.others if entry not in needed)]
        names = {entry.name for entry in plugins if isinstance(entry, (Plugin, type))}
        company = dict.fromkeys(entry for entry in listed if entry not in names and entry not in plugins)
        return Trainer(["-*", *company, *plugins], **{**self.trainer, **options})

    # ----------------------------------------------------------------------------------------------------- the tests

    def test_its_name_is_that_of_its_entry_point(self) -> None:
        kind = self.kind()
        if kind.__module__ == LOCAL:
            return
        value = f"{kind.__module__}:{kind.__qualname__}"
        names = [entry.name for entry in entry_points(group=GROUP) if entry.value == value]
        assert names == [kind.name], (
            f"the plugin's name is {kind.name!r}, and the entry points of {value} in {GROUP!r} are called {names}"
        )

    def test_it_imports_without_optional_packages(self) -> None:
        assert (problem := import_without_optional(self.kind())) is None, problem

    def test_every_option_has_help(self) -> None:
        fields = options_of(self.kind()).items()
        silent = [keyword for keyword, field in fields if not field.metadata[OPTION].help.strip().endswith(".")]
        assert silent == [], f"these options have no help that is a sentence: {', '.join(silent)}"

    def test_it_says_what_it_is_for(self) -> None:
        doc = self.kind().__doc__ or ""
        assert doc.strip(), f"{self.kind().__name__} has no docstring"
        assert not doc.startswith(f"{self.kind().__name__}("), f"{self.kind().__name__} has no docstring of its own"

    def test_its_hooks_are_called_as_its_author_thinks(self) -> None:
        doubts = manage(self.made(self.make()).plugins).doubts
        assert doubts == [], "; ".join(doubts)

    def test_it_survives_a_fit_of_two_batches(self) -> None:
        module, books = self.module(), probes.Books()
        before = probes.surroundings(module)
        trainer = self.made(self.make(), books)
        trainer.fit(module, self.data())
        loop, after = trainer.loop, probes.surroundings(module)
        assert loop is not None
        assert loop.status in ("finished", "stopped")
        assert loop.hook.disabled == {}
        assert (wrong := books.differences(loop)) == [], f"the loop's counters were changed: {'; '.join(wrong)}"
        assert not books.keeps_graphs, (
            "the first loss of the epoch is still there with its graph when the epoch ends: keep loss.detach()"
        )
        left = [f"{what}: {before[what]} became {after[what]}" for what in LASTING if before[what] != after[what]]
        assert left == [], "; ".join(left)

    def test_it_declares_what_each_of_its_attributes_is(self) -> None:
        plugin = self.make()
        watch = probes.Attributes(plugin)
        self.made(plugin, watch).fit(self.module(), self.data())
        names = sorted({*watch.seen, *undeclared(plugin)})
        assert names == [], (
            f"these attributes are no options, and it does not say what they are: {', '.join(names)}. Name in the class, as "
            f"state = (...), those that a resumed run must have back, and as transient = (...) those that each run sets anew"
        )

    def test_its_state_goes_through_state_dict(self) -> None:
        plugin, other = self.make(), self.make()
        self.made(plugin).fit(self.module(), self.data())
        state = plugin.state_dict()
        assert (problem := probes.not_plain(state)) is None, f"state_dict has what is no plain data: {problem}"
        restore = probes.Restore(other, state)
        self.made(other, restore).fit(self.module(), self.data(1))
        assert restore.seen is None or self.same_state(restore.seen, state), (
            f"load_state_dict(state) and then state_dict() must give the state again: {state} became {restore.seen}"
        )

    def test_a_run_that_is_gone_on_with_is_the_run_that_was_not_stopped(self, tmp_path: Any) -> None:
        if not self.resumes:
            pytest.skip("a run with it is not gone on with")
        if not set(SAVING) <= {name for name, found in discover().items() if found.plugin}:
            pytest.skip("there is nothing to resume with")
        kept: dict[str, Any] = {"default_root_dir": str(tmp_path), "max_epochs": 2, "save_every": 1}
        modules, plugins = [], []
        runs: list[dict[str, Any]] = [
            {"run_name": "whole"},
            {"run_name": "part"},
            {"run_name": "part", "resume": "auto"},
        ]
        for number, options in enumerate(runs):
            modules.append(self.module())  # which seeds: each run begins with the same random numbers
            stop = probes.StopAfterEpoch(number == 1)
            trainer = self.made(*self._resumable(), stop, **{**self._keywords(), **options, **kept})
            trainer.fit(modules[-1], self.data())
            plugins.append(next(plugin for plugin in trainer.plugins if type(plugin) is self.kind()))
        whole, _, rest = plugins
        assert probes.same(dict(modules[2].state_dict()), dict(modules[0].state_dict())), "the weights differ"
        assert self.same_state(rest.state_dict(), whole.state_dict()), (
            f"the state of the resumed plugin is {rest.state_dict()}, that of the one never stopped {whole.state_dict()}"
        )

    def test_a_run_that_is_killed_between_two_batches_is_the_run_that_was_not_stopped(self, tmp_path: Any) -> None:
        if (
            not self.resumes
            or self.boundaries == 0
            or not set(SAVING) <= {name for name, found in discover().items() if found.plugin}
        ):
            pytest.skip("a run with it is not gone on with, or there is nothing to resume with")

        def trainer(witness: Plugin, placed: Mapping[str, Any]) -> Trainer:
            return self.made(*self._resumable(), witness, **{**self._keywords(), "max_epochs": 2, **placed})

        if not any(plugin.name == "checkpoint" for plugin in self.made(*self._resumable(), **self._keywords()).plugins):
            pytest.skip("with it, a run is not saved")
        machine = Resuming(tmp_path, trainer, self.module, lambda: (self.data(3),), self.unsteady)
        machine.find_unsteady()
        report = machine.prove(self.boundaries)
        assert report.partings == [], (
            f"a resumed run differs, {report.first[0]}. What decides what comes next belongs into the class's state = (...), or "
            f"into state_dict. What need not be the same is named in the contract's unsteady = (...), by the path said here"
        )

    def _resumable(self) -> list[Entry]:
        """The plugin beside those that save and resume; it may be one of them, whose options that test sets itself."""
        return [*SAVING] if self.kind().name in SAVING else [*SAVING, self.make()]

    def _keywords(self) -> dict[str, Any]:
        """The plugin's options as keywords of the Trainer, where it is not listed as an instance."""
        if self.kind().name not in SAVING:
            return {}
        return {
            keyword: self.options[f.name] for keyword, f in options_of(self.kind()).items() if f.name in self.options
        }

    def test_it_disturbs_nothing_that_it_does_not_declare(self) -> None:
        seen = []
        for plugins in ([], [self.make()]):
            module, watch = self.module(), probes.Watch()
            random = probes.random_state()
            self.made(watch, *plugins).fit(module, self.data())
            seen.append(watch.seen(module, random))
        changed = {what for what in probes.DISTURBS if not probes.same(seen[0][what], seen[1][what])}
        if "gradients" in self.kind().disturbs:
            changed -= {"parameters"}  # they follow
        if "parameters" in self.kind().disturbs:
            changed -= {"gradients"}
        undeclared = sorted(changed - set(self.kind().disturbs))
        assert undeclared == [], (
            f"with it these come out otherwise than without it: {', '.join(undeclared)}. If that is what it is for, its class "
            f"says so: disturbs = {tuple(sorted(changed | set(self.kind().disturbs)))}"
        )

    def test_it_waits_for_no_device_in_each_batch(self) -> None:
        if "waiting" in self.kind().disturbs:
            return
        counts: list[list[str]] = []
        for batches in (12, 16):  # what is looked at once, such as the first samples, is the same for both
            plugin = self.make()
            with count_syncs() as syncs:
                self.made(plugin).fit(self.module(), self.data(batches))
            counts.append([str(sync) for sync in syncs if sync.plugin == plugin.key])
        assert len(counts[0]) == len(counts[1]), f"values are read in each batch: {sorted(set(counts[1]))}"

    def test_it_pickles(self) -> None:
        plugin = self.make()
        for when in ("configured", "after a run"):
            try:
                copy = pickle.loads(pickle.dumps(plugin))
            except Exception as error:
                culprits = [name for name, value in vars(plugin).items() if not _pickles(value)]
                pytest.fail(f"{when} it cannot be pickled, for {', '.join(culprits)}: {type(error).__name__}: {error}")
            for field in options_of(type(plugin)).values():
                assert type(getattr(copy, field.name)) is type(getattr(plugin, field.name))
            if when == "configured":
                self.made(plugin).fit(self.module(), self.data())

    def test_it_leaves_nothing_behind_after_an_error(self) -> None:
        module = self.module()
        before = probes.surroundings(module)
        with pytest.raises(probes.PlannedError):
            self.made(probes.Fail(), self.make()).fit(module, self.data())
        after = probes.surroundings(module)
        left = [f"{what}: {before[what]} became {after[what]}" for what in before if before[what] != after[what]]
        assert left == [], "; ".join(left)

    def test_it_runs_in_several_processes(self) -> None:
        if self.cannot_run is not None:
            pytest.skip(f"it cannot be run here: {self.cannot_run}")
        if self.processes < 2 or "ddp" not in discover():
            pytest.skip("it is not run in several processes")
        values = self.weights_on_ranks()
        for value in values[1:]:
            assert probes.same(value, values[0]), "the ranks have come to different weights"

    def weights_on_ranks(self) -> Sequence[Mapping[str, Any]]:
        """Run a fit in several processes, and give the weights that each comes to; override it to launch them otherwise."""
        return values_of(run_ranks(fit_on_rank, self.processes, type(self)))


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def fit_on_rank(contract: type[PluginContract]) -> dict[str, Any]:
    """What a rank does: a fit with the plugin of ``contract``; it gives the weights that it came to."""
    self = contract()
    module = self.module()
    ddp: dict[str, Any] = {} if self.kind().group == "strategy" else {"strategy": "ddp"}
    self.made(self.make(), *(["ddp"] if ddp else []), **ddp).fit(module, self.data())
    return {name: value.detach().cpu() for name, value in module.state_dict().items()}
