"""Callbacks in the familiar class form, and the same events as methods of the module."""
