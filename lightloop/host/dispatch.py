"""Call hooks fast: pluggy decides which plugins are called in which order, and a compiled function calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pluggy

from lightloop.exceptions import add_note, notes_of
from lightloop.host.answers import Wanted, check_for
from lightloop.host.compiled import OWN, Answers, Check, Said, around, blame, in_turn
from lightloop.host.guard import guarded, guarded_wrapper
from lightloop.warning import warn

CLEAN_UP = ("after_evaluation", "on_error", "after_fit", "teardown")
"""The hooks in which every plugin has its turn, in reverse order, whatever others did; they cannot be wrapped."""

Watch = Callable[[str, str, Callable[..., Any]], Callable[..., Any]]
"""Given a hook, a plugin's key and its function: the function that is called in its place."""


class Relay:
    """A callable for each hook, under the hook's name, compiled from its registered implementations.

    A hook that answers (``firstresult``) gives the first answer; one that tells (its specification returns None) gives
    None; any other gives the list of what was returned. An exception leaves as the same object, with a note that says
    whose it is.
    """

    def __init__(self, manager: pluggy.PluginManager, watch: Watch | None = None) -> None:
        self._manager = manager
        self.disabled: dict[str, str] = {}
        """The plugins that failed and were taken out for it, each with what happened in which hook."""
        self.idle: set[str] = set()
        """The hooks that nothing in the run implements, not even the loop itself."""
        self._left: list[tuple[object, tuple[str, ...]]] = []
        self._said: dict[str, Said] = {}
        self.rebuild(watch)

    def wrong(self, hook: str, kind: type[Exception], text: str, usual: str = "") -> Exception:
        """The error for the last answer to the operation ``hook``, which turns out to be wrong when it is used.

        Args:
            hook: the operation.
            kind: of the error.
            text: what is wrong.
            usual: who is meant to have answered in ``text``; where a plugin has, it is said that it was that one.
        """
        impl = self._said[hook].impl if hook in self._said else None
        if impl is None or impl.plugin_name == OWN:
            return kind(text)
        text = text.replace(usual, "it") if usual else text
        error = kind(f"{impl.plugin.label} answered {hook!r} with what cannot be used: {text}")
        blame(error, hook, impl)
        return error

    def implementations(self, hook: str) -> dict[str, Callable[..., Any]]:
        """The functions that implement ``hook`` in this run, by what their plugins are called in errors."""
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        return {
            impl.plugin.label: impl.function
            for impl in impls
            if impl.plugin_name != OWN and not self._has_left(impl.plugin, hook)
        }

    def leave(self, plugin: object, *hooks: str) -> None:
        """Take ``plugin`` out of ``hooks``, or of every hook but the clean-up ones, as if it were absent from the run.

        Named, a clean-up hook is left like any other.
        """
        self._left.append((plugin, hooks))
        for caller in self._manager.get_hookcallers(plugin) or ():
            self._rebuild(caller)

    def rebuild(self, watch: Watch | None = None, watch_wrapper: Watch | None = None) -> None:
        """Compile every hook again: after plugins were registered or taken out, or to have each call watched.

        ``watch_wrapper`` is given the generator functions of wrappers, and gives one.
        """
        self._watch, self._watch_wrapper = watch, watch_wrapper
        for caller in vars(self._manager.hook).values():
            if isinstance(caller, pluggy.HookCaller):
                self._rebuild(caller)

    def _rebuild(self, caller: pluggy.HookCaller) -> None:
        if caller.has_spec():
            name = caller.name
            used = any(not self._has_left(impl.plugin, name) for impl in caller.get_hookimpls())
            (self.idle.discard if used else self.idle.add)(name)
            setattr(self, name, self._concluding(name) if name in CLEAN_UP else self._at_first_call(name, caller))

    def begin(
        self, plugins: Sequence[object], begun: list[object], is_main: Callable[[], bool], **arguments: Any
    ) -> None:
        """Reset and set up one plugin after another.

        Args:
            plugins: the live ones, in order.
            begun: each plugin is appended before its setup is called, so that one that fails is torn down too.
            is_main: whether this is the main rank, as far as the plugins that are set up have told; elsewhere a plugin
                leaves the hooks that run on the main rank alone.
            arguments: those of ``setup``.
        """
        impls = {id(impl.plugin): impl for impl in self._manager.hook.setup.get_hookimpls()}
        for plugin in plugins:
            begun.append(plugin)
            self._reset(plugin)
            if not is_main():
                self._leave_to_main(plugin)
            if (impl := impls.get(id(plugin))) is not None and not self._has_left(plugin, "setup"):
                try:
                    self._guarded("setup", impl)(*(arguments[argument] for argument in impl.argnames))
                except BaseException as error:
                    blame(error, "setup", impl)
                    raise

    def _reset(self, plugin: Any) -> None:
        """Have ``plugin`` begin anew."""
        try:
            getattr(plugin, "reset", tuple)()
        except Exception as error:
            if not self.disable(plugin, "reset", error):
                add_note(error, f"in reset of {plugin.label}")
                raise

    def _leave_to_main(self, plugin: object) -> None:
        """Take ``plugin`` out of the hooks that run on the main rank alone."""
        ranks: Any = getattr(plugin, "ranks", "all")
        if ranks == "main":
            self.leave(plugin, *(caller.name for caller in self._manager.get_hookcallers(plugin) or ()))
        elif ranks != "all":
            self.leave(plugin, *(hook for hook, where in ranks.items() if where == "main"))

    def conclude(
        self,
        *names: str,
        error: BaseException | None = None,
        among: Sequence[object] | None = None,
        **arguments: Any,
    ) -> None:
        """Call clean-up hooks, one after another, of each plugin in reverse order, each in its own try.

        What goes wrong is noted on ``error``, which stays the one error. If there was none, it is raised when everybody
        has had a turn, several as a group. One that ends the process, such as SystemExit, is raised from an ``error`` that
        does not: a program that catches errors would go on.

        Args:
            names: the hooks.
            error: the exception that is already on its way to the user; ``on_error`` is told of it.
            among: the plugins that have a turn; all of them if None.
            arguments: the hooks' arguments.
        """
        failures: list[BaseException] = []
        for name in names:
            for impl in getattr(self._manager.hook, name).get_hookimpls():
                if among is not None and not any(impl.plugin is plugin for plugin in among):
                    continue
                if any(impl.plugin is plugin and name in hooks for plugin, hooks in self._left):
                    continue
                try:
                    self._function(name, impl)(*({"error": error, **arguments}[a] for a in impl.argnames))
                except BaseException as raised:
                    if raised is not error:
                        blame(raised, name, impl)
                        failures.append(raised)
        if error is not None:
            for failure in failures:
                add_note(error, f"then also {type(failure).__name__}: {failure} ({'; '.join(notes_of(failure))})")
            ends = next((failure for failure in failures if not isinstance(failure, Exception)), None)
            if ends is not None and isinstance(error, Exception):
                raise ends from error
        elif len(failures) == 1:
            raise failures[0]
        elif failures:
            raise BaseExceptionGroup(f"{len(failures)} plugins failed in {', '.join(names)}", failures)

    def _at_first_call(self, name: str, caller: pluggy.HookCaller) -> Callable[..., Any]:
        """Compile when the hook is first called: by then those with nothing to do have bowed out of it."""

        def compile_and_call(**arguments: Any) -> Any:
            setattr(self, name, self._compile(name, caller))
            return getattr(self, name)(**arguments)

        return compile_and_call

    def _concluding(self, name: str) -> Callable[..., None]:
        return lambda **arguments: self.conclude(name, **arguments)

    def _compile(self, name: str, caller: pluggy.HookCaller) -> Callable[..., Any]:
        spec = caller.spec
        assert spec is not None
        impls = [impl for impl in caller.get_hookimpls()[::-1] if not self._has_left(impl.plugin, name)]
        alone = len(impls) == 1 and impls[0].plugin_name == OWN and impls[0].argnames == spec.argnames
        if alone and not self._watch:
            return impls[0].function
        plain = [impl for impl in impls if not impl.wrapper]
        tells = spec.function.__annotations__.get("return", "") in (None, "None")
        answers: Answers = "first" if spec.opts["firstresult"] else "none" if tells else "all"
        own = next((impl.function for impl in impls if impl.plugin_name == OWN), None)
        wanted = None if answers == "none" else Wanted(spec.function, own)
        checks = [self._check(name, impl, wanted) for impl in plain]
        said = self._said[name] = Said()
        call = in_turn(
            name, spec.argnames, plain, [self._function(name, impl) for impl in plain], answers, checks, said
        )
        for impl in reversed([impl for impl in impls if impl.wrapper]):
            check = self._check(name, impl, wanted) if answers == "first" else None
            call = around(name, impl, self._function(name, impl), call, check, said)
        return call

    def _check(self, name: str, impl: Any, wanted: Wanted | None) -> Check | None:
        """How the answers of ``impl`` are held to what is ``wanted``; None where there is nothing to hold them to."""
        if wanted is None or not wanted.is_known or impl.plugin_name == OWN:
            return None
        return check_for(name, impl, wanted, partial(self._disable, impl.plugin, name))

    def _function(self, name: str, impl: Any) -> Callable[..., Any]:
        """Return the function to call for ``impl``, guarded and traced if requested."""
        function, watch = self._guarded(name, impl), self._watch_wrapper if impl.wrapper else self._watch
        return watch(name, impl.plugin_name, function) if watch else function

    def _guarded(self, name: str, impl: Any) -> Callable[..., Any]:
        if getattr(impl.plugin, "on_failure", "stop") == "stop":
            return impl.function  # type: ignore[no-any-return]
        failed = partial(self._disable, impl.plugin, name)
        return guarded_wrapper(impl.function, failed) if impl.wrapper else guarded(impl.function, failed)

    def disable(self, plugin: Any, where: str, error: Exception) -> bool:
        """Take ``plugin`` out of the run after ``error``, with a warning, if it says ``on_failure = "disable"``.

        Returns whether it says so; else the error is the run's.
        """
        if getattr(plugin, "on_failure", "stop") == "stop":
            return False
        self._disable(plugin, where, error)
        return True

    def _disable(self, plugin: Any, hook: str, error: Exception) -> None:
        if plugin.key not in self.disabled:
            self.disabled[plugin.key] = f"{hook}: {type(error).__name__}: {error}"
            warn(f"{plugin.label} is out for the rest of the run; it failed in {self.disabled[plugin.key]}")
            self.leave(plugin)

    def _has_left(self, plugin: object, hook: str) -> bool:
        return any(plugin is other and (not hooks or hook in hooks) for other, hooks in self._left)


__all__ = ["CLEAN_UP", "OWN", "Relay", "Watch"]
