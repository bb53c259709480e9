"""Callbacks as classes, and the same events as methods of the module."""
