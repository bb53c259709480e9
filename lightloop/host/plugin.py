"""The base class of plugins: a plugin has options, a declared place among the others, and hooks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, dataclass_transform

from lightloop.host import plugin_state
from lightloop.host.class_checks import check_class
from lightloop.host.options import OPTION, describe, fits, hints_of, type_name

if TYPE_CHECKING:
    from lightloop.hooktypes import Implementations
else:
    Implementations = object

Ranks = Literal["all", "main"]


# Not field_specifiers=(option,): of a specifier, type checkers see no default that is positional.
@dataclass_transform(eq_default=False)
class Plugin(Implementations):
    """The base class of all plugins. A subclass becomes a dataclass of its options, compared by identity.

    Write hooks as methods marked with :data:`lightloop.hookimpl`; see :class:`lightloop.Hooks` for all of them. Set
    what the plugin remembers of a run in :meth:`reset`, so that each run starts clean.
    """

    name: ClassVar[str]
    """The name by which users and other plugins refer to it."""
    before: ClassVar[tuple[str, ...]] = ()
    """Names, groups or tags of plugins that this one runs before; of one that is not live, before what that one is before."""
    after: ClassVar[tuple[str, ...]] = ()
    """Names, groups or tags of plugins that this one runs after; of one that is not live, after what that one is after."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Names, groups or tags that must be live for this plugin to be live."""
    conflicts: ClassVar[tuple[str, ...]] = ()
    """Names, groups or tags that must not be live together with this plugin."""
    group: ClassVar[str | None] = None
    """At most one plugin of a group is live; a default one gives way to one that is asked for."""
    tags: ClassVar[tuple[str, ...]] = ()
    """Further names by which others may refer to it: its kind, such as "logger", and roles (``lightloop.toolkit.ROLES``)."""
    replaces: ClassVar[tuple[str, ...]] = ()
    """Names, groups or tags that this plugin replaces: they are left out while it is live."""
    default: ClassVar[bool] = False
    """Whether it is live by default, provided that the plugins that it requires are live."""
    exposes: ClassVar[Mapping[str, str]] = {}
    """Attributes that the Trainer has while this plugin is live, each with the attribute of the plugin behind it."""
    hints: ClassVar[Mapping[str, str]] = {}
    """What to write in place of names that do not exist, for the errors about them: "Trainer.NAME" for an option or
    attribute, "Module.NAME" for an attribute, "log.NAME" for an argument of ``log``."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """Names that it puts into ``loop.step_arguments``. In runs without it, training_step is not given something else for them."""
    state: ClassVar[tuple[str, ...]] = ()
    """Attributes that influence the rest of the run: they are saved in checkpoints and restored on resume."""
    transient: ClassVar[tuple[str, ...]] = ()
    """Attributes that each process sets anew, such as open files, clocks, and what options or other state tell.

    Each attribute that is no option must be in one of the two; a subclass adds to what its bases declare. The contract
    for plugins (``lightloop check``) refuses one that is in neither, and proves that those of ``state`` suffice.
    """
    state_version: ClassVar[int] = 1
    """The current version of the format of :meth:`state_dict`."""
    hookspecs: ClassVar[tuple[type, ...]] = ()
    """Classes of hook specifications that this plugin adds; other plugins may implement them."""
    works_with: ClassVar[str | None] = None
    """The versions of Lightloop that it supports, as a PEP 440 specifier: ">=0.1,<2"; None is any."""
    ranks: ClassVar[Ranks | Mapping[str, Ranks]] = "all"
    """The ranks on which its hooks run: "all" or "main"; or a mapping with the hooks that do not run on all."""
    on_failure: ClassVar[Literal["stop", "disable"]] = "stop"
    """How an error in one of its hooks is handled: end the run, or warn and disable the plugin for the rest of it."""
    distribution: ClassVar[str | None] = None
    """Name and version of the distribution that provides it, such as "lightloop 0.1.0"; set on discovery."""
    disturbs: ClassVar[tuple[str, ...]] = ()
    """What comes out otherwise for it than without it: of "parameters", "gradients", "random" (where the random numbers
    are) and "modes" (train or eval); and "waiting", if it reads values of the device in each batch."""

    _key: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_class(cls)
        if "name" in cls.__dict__ and not re.fullmatch(r"[A-Za-z0-9_-]+", str(cls.name)):
            raise TypeError(f"{cls.__qualname__}.name must be letters, digits, - and _; it is {cls.name!r}")
        if cls.ranks != "all" and "strategy" not in cls.after:  # which rank this is, is known then
            cls.after = (*cls.after, "strategy")
        plugin_state.declare(cls)
        dataclasses.dataclass(eq=False, repr=True)(cls)

    def __post_init__(self) -> None:
        hints = hints_of(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if OPTION in field.metadata and not fits(value, hints.get(field.name, Any)):
                option = describe(type(self), field.name)
                raise TypeError(f"{option} must be {type_name(field)}; {value!r} is {type(value).__name__}")
        self.validate()
        self.reset()

    def reset(self) -> None:
        """Reset what the plugin remembers of a run, so that each run starts clean.

        It is called at construction, after :meth:`validate`, and by the host before the ``setup`` of each run, whatever its
        stage; what a resumed run has back is put back later. A plugin may call it in ``teardown`` to hold nothing longer.
        """

    def validate(self) -> None:
        """Reject invalid option values; called at construction, after the types have been checked.

        Raise ValueError or TypeError; :meth:`invalid` words it.
        """

    def invalid(self, field: str, wanted: str) -> ValueError:
        """Return the error that names an option, its value, and what it must be."""
        return ValueError(f"{describe(type(self), field)} must be {wanted}; it is {getattr(self, field)!r}")

    @classmethod
    def names(cls) -> frozenset[str]:
        """All names by which other plugins may refer to this one: its name, group and tags."""
        return frozenset((cls.name, *cls.tags, *([cls.group] if cls.group else [])))

    @classmethod
    def origin(cls) -> str:
        """Where the plugin comes from, for errors: its module and, if known, its distribution."""
        distribution = vars(cls).get("distribution")  # not that of a base class: a subclass is somebody else's
        return f"{cls.__module__}, {distribution}" if distribution else cls.__module__

    @property
    def label(self) -> str:
        """The plugin's name in errors: its key and its origin."""
        return f"plugin {self.key!r} ({self.origin()})"

    @property
    def key(self) -> str:
        """The key of its saved state; unlike ``name``, unique among live plugins. Set it to choose your own."""
        return self._key or self.name

    @key.setter
    def key(self, value: str) -> None:
        self._key = value

    @classmethod
    def is_default(cls) -> bool:
        """Return whether the plugin is live by default in this environment; by default, :attr:`default`.

        One that is so only here is also what "auto" means for its group: ``strategy="auto"`` where its launcher has started
        the process.
        """
        return cls.default

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save: plain containers, numbers, strings and tensors; by default all of :attr:`state`.

        A set is saved as a list, an object with a ``state_dict`` of its own by that. Where another form is needed, write
        both methods, and name in :attr:`state` the attributes that they cover.
        """
        return {plugin_state.key(name): plugin_state.saved(getattr(self, name)) for name in type(self).state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, in the format of :attr:`state_version`.

        It is called after ``before_fit``, by which every attribute of :attr:`state` must be set.
        """
        for name in type(self).state:
            setattr(self, name, plugin_state.restored(getattr(self, name), state[plugin_state.key(name)]))

    @classmethod
    def migrate_state(cls, state: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Convert a state that was saved in an older format, ``version``, to the current one."""
        raise ValueError(f"{cls.name}: state of version {version} cannot be read; this is version {cls.state_version}")
