"""The ``lightloop`` command: a front, and one file for each of its subcommands."""
