"""A plugin that needs what its distribution does not require."""

import nonexistent_thing  # noqa: F401

from lightloop import Plugin


class Absent(Plugin):
    name = "absent"
