"""Two plugins that each want to run before the other."""

from lightloop import Plugin


class Hen(Plugin):
    name = "hen"
    before = ("egg",)


class Egg(Plugin):
    name = "egg"
    before = ("hen",)
