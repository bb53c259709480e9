"""Everything that a run needs to resume bit-exactly: taken between batches, checked, and restored in order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lightloop import Loop, Plugin
from lightloop.toolkit import add_note
from lightloop_plugins._sharding import SHARDING
from lightloop_plugins.checkpoint.errors import CheckpointError, put_back
from lightloop_plugins.checkpoint.format.tree import mapped
from lightloop_plugins.checkpoint.saver import Saver
from lightloop_plugins.checkpoint.sharded.index import Stored
from lightloop_plugins.checkpoint.state import modules, optimizers
from lightloop_plugins.checkpoint.state.partial import LeftOut, check_base, without
from lightloop_plugins.checkpoint.state.proof import prove
from lightloop_plugins.checkpoint.state.random_state import take_global, try_global
from lightloop_plugins.checkpoint.state.ranks import OWN_PARTS, differing, gather, take_rank
from lightloop_plugins.checkpoint.state.reading import Reading
from lightloop_plugins.checkpoint.state.room import make_room, unchanged_on_error
from lightloop_plugins.checkpoint.state.windows import apply_metrics, apply_window
from lightloop_plugins.checkpoint.storage.folder import Content
from lightloop_plugins.checkpoint.weights.load import weights_of

COUNTERS = ("epoch", "batch_idx", "total_batches", "total_pieces", "global_step", "skipped_steps")
_BOUND = re.compile("[a-z_]+=")
"""How a stop is worded that comes from an option's value, ``max_steps=10 reached``: it is found again, or was raised."""


def take(loop: Loop, left_out: LeftOut, reading: Reading | None) -> dict[str, Any]:
    """The state of the run, as a plain tree whose tensors are the live ones; every rank calls it.

    Args:
        loop: the run, between two batches.
        left_out: the tensors of the module that are not taken.
        reading: how the epoch is read.
    """
    if (sharding := loop.stash.get(SHARDING)) is not None:
        sharding.prepare()
    every = modules.parameters(loop)
    module = without(modules.take_module(loop, every), left_out)
    states = {plugin.key: take_plugin(loop, plugin) for plugin in loop.plugins}
    plugins = {key: each for key, each in states.items() if each is not None}
    own = take_rank(loop, reading, every)
    if loop.world.size > 1:
        own["differs"] = differing(loop, {**{part: module[part] for part in OWN_PARTS}, "plugins": plugins})
    taken = optimizers.take_optimizers(loop, every)
    if sharding is None:
        prove(loop.optimizers, taken)
    return {
        "module": module,
        "optimizers": taken,
        "schedulers": optimizers.take_schedulers(loop),
        "plugins": plugins,
        "counters": {**{name: getattr(loop, name) for name in COUNTERS}, "optimizer_steps": list(loop.optimizer_steps)},
        "stop_reasons": [] if loop.stopping else [each for each in loop.stop_reasons if not _BOUND.match(each)],
        "ranks": gather(loop, own),
    }


def ready(loop: Loop, tree: Any) -> Content:
    """``tree``, read through, for whichever kind of saver :func:`saver_for` gives."""
    sharding = loop.stash.get(SHARDING)
    if sharding is None:
        return Content.of(tree)
    from lightloop_plugins.checkpoint.sharded.save import SharedContent  # torch.distributed, which few runs need

    return SharedContent.shared(tree, sharding)


def saver_for(loop: Loop) -> type[Saver]:
    """What saves on this rank."""
    if loop.world.is_main:
        return Saver
    from lightloop_plugins.checkpoint.sharded.save import Follower

    return Follower


def take_plugin(loop: Loop, plugin: Plugin) -> dict[str, Any] | None:
    """A plugin's state and the number of its form; None where it fails and the run goes on without the plugin."""
    try:
        return {"version": type(plugin).state_version, "state": dict(plugin.state_dict())}
    except Exception as error:
        if loop.hook.disable(plugin, "state_dict", error):
            return None
        add_note(error, f"in state_dict of {plugin.label}, while saving a checkpoint")
        raise


class Restoration:
    """A state on its way into a run: checked whole at construction, when nothing has been changed yet.

    Raises:
        CheckpointError: if it is not of such a run.
    """

    def __init__(self, loop: Loop, state: Mapping[str, Any], what: str) -> None:
        self.loop, self.what, self.sharding = loop, what, loop.stash.get(SHARDING)
        if self.sharding is not None:
            self.sharding.prepare()
        try:
            as_many = len(state["ranks"]) == loop.world.size
            self.rank = state["ranks"][loop.world.rank if as_many else 0]
            if not as_many and loop.world.rank:  # no two ranks may draw the same numbers
                self.rank = {**self.rank, "random": take_global()}
            self.state = {**state, "ranks": [self.rank]}
            self._take_back_own()
            self._check_with_room(what)
            if _is_stored(self.state):
                from lightloop_plugins.checkpoint.sharded.load import read_all

                self.state = read_all(self.state, self.sharding)
                (self.rank,) = self.state["ranks"]
            with put_back("the random numbers", what):
                try_global(self.rank["random"])
                modules.try_generators(loop, self.state["module"])
            if self.sharding is not None:
                self.state["plugins"] = modules.split_by_name(self.state["plugins"], modules.parameters(loop))
            self.plugins = self._migrated(what)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{what} lacks a part or has it in another form: {error!r}") from error

    def apply(self) -> None:
        """Weights, optimizers, schedulers and counters, in this order: a scheduler may set what an optimizer has."""
        loop, state = self.loop, self.state
        with put_back("module", self.what):
            modules.apply_module(loop, state["module"])
        with put_back("optimizers", self.what):
            optimizers.apply_optimizers(loop, state["optimizers"])
        with put_back("schedulers", self.what):
            optimizers.apply_schedulers(loop, state["schedulers"])
        for name in COUNTERS:
            setattr(loop, name, state["counters"][name])
        loop.optimizer_steps = list(state["counters"]["optimizer_steps"])

    def _give_back(self, plugin: Plugin) -> None:
        try:
            with put_back(f"the state of {plugin.label}", self.what):
                plugin.load_state_dict(self.plugins[plugin.key])
        except Exception as error:
            if not self.loop.hook.disable(plugin, "load_state_dict", error):
                raise

    def finish(self) -> None:
        """All of it, when every plugin is ready: what they set in before_fit is as it was; gradients come last."""
        self.apply()
        loop = self.loop
        for plugin in loop.plugins:
            if plugin.key in self.plugins:
                self._give_back(plugin)
        for reason in self.state["stop_reasons"]:
            loop.stop(reason)
        with put_back(f"ranks.{loop.world.rank}", self.what):
            apply_metrics(loop, self.rank["metrics"])
            for window, saved in zip(loop.windows, self.rank["windows"], strict=True):
                apply_window(window, saved, loop.device)
            self._apply_gradients()

    def _take_back_own(self) -> None:
        """Put in place what this rank had otherwise than rank 0; it was left out where it was the same."""
        differs = self.rank.get("differs", {})
        module = {part: {**self.state["module"][part], **differs.get(part, {})} for part in OWN_PARTS}
        self.state["module"] = {**self.state["module"], **module}
        self.state["plugins"] = {**self.state["plugins"], **differs.get("plugins", {})}

    def _check_with_room(self, what: str) -> None:
        """Check; where tensors of the module have other names or shapes than then, it may first make room for them."""
        if self.sharding is not None or modules.fits(self.loop, self.state["module"]):
            self._check(what)
            return
        module, weights = self.loop.module, weights_of(self.state)
        beside = {"hyper_parameters": self.state.get("hparams", {}), **self.state["counters"]}
        with unchanged_on_error(module):
            said = make_room(module, weights, {**beside, **_own_part(self.state["plugins"])})
            try:
                self._check(what)
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error}. A module whose tensors change makes room for them in on_load_checkpoint(self, checkpoint), from "
                    f"checkpoint['state_dict'], or in _load_from_state_dict of the part that has them; it said: {said or 'nothing'}"
                ) from error

    def _check(self, what: str) -> None:
        modules.check_module(self.loop, self.state["module"], what)
        check_base(self.loop.module, self.state["module"].get("left_out", {}), what)
        optimizers.check_optimizers(self.loop, self.state["optimizers"], what)
        optimizers.check_schedulers(self.loop, self.state["schedulers"], what)
        self._check_numbers(what)
        every = modules.parameters(self.loop)
        for kind in ("gradients", "waiting"):
            saved = self.rank.get(kind, {})
            modules.check_tensors(saved, {name: every[name] for name in saved}, "gradient", what)

    def _apply_gradients(self) -> None:
        """Those that were reduced go to their parameters, and those that were not to whoever waits with them."""
        gradients, waiting = self.rank["gradients"], dict(self.rank.get("waiting", {}))
        for name, parameter in modules.parameters(self.loop).items():
            saved = gradients.get(name)
            if self.sharding is not None and saved is not None and not hasattr(saved, "to_local"):
                waiting[name], saved = saved, None  # of a run in which nothing was split: this rank's own
            elif self.sharding is None and name in waiting:
                saved = waiting[name] if saved is None else saved + waiting[name]
            parameter.grad = None if saved is None else saved.clone().to(parameter.device)
        if self.sharding is not None:
            self.sharding.set_waiting(waiting)

    def _check_numbers(self, what: str) -> None:
        steps, windows = self.state["counters"]["optimizer_steps"], self.rank["windows"]
        if len(steps) != len(self.loop.optimizers):
            raise CheckpointError(f"{what} is of {len(steps)} optimizers; there are {len(self.loop.optimizers)}")
        if len(windows) != len(self.loop.windows):
            kinds = ["a loss of its own", "one loss with the others"][:: 1 if len(windows) > 1 else -1]
            raise CheckpointError(
                f"{what} is of a run in which each optimizer had {kinds[0]}, and now each has {kinds[1]}: let training_step "
                "take optimizer_idx, or not, as it did then"
            )

    def _migrated(self, what: str) -> dict[str, Mapping[str, Any]]:
        states = {}
        for plugin in self.loop.plugins:
            saved = self.state["plugins"].get(plugin.key)
            if saved is None:
                continue
            state, version, now = saved["state"], saved["version"], type(plugin).state_version
            if version > now:
                raise CheckpointError(
                    f"{what}: the state of {plugin.label} is of version {version}; this one reads {now}"
                )
            if version < now:
                state = type(plugin).migrate_state(state, version)
            states[plugin.key] = state
        return states


def _own_part(plugins: Mapping[str, Any]) -> dict[str, Any]:
    """What the module's ``on_save_checkpoint`` has put into the checkpoint."""
    for each in plugins.values():
        saved = each["state"].get("checkpoint")
        if isinstance(saved, Mapping) and isinstance(saved.get("module"), Mapping):
            return dict(saved["module"])
    return {}


def _is_stored(tree: Any) -> bool:
    """Whether values in it have not been read yet."""
    found: list[bool] = []
    mapped(tree, lambda value: found.append(True) if isinstance(value, Stored) else None)
    return bool(found)
