"""A plugin with a hook that takes an argument that the hook does not have."""

from lightloop import Loop, Plugin, hookimpl


class Crooked(Plugin):
    name = "crooked"

    @hookimpl
    def before_step(self, loop: Loop, gradients: list) -> None:
        pass
