"""A plugin that has the name of another distribution's."""

from lightloop import Plugin


class Noise(Plugin):
    name = "noise"
