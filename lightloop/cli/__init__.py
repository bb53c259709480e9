"""The ``lightloop`` command."""
