"""Utilities for plugins and users' code; the loop itself imports none of them."""
