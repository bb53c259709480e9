"""Saving a run and going on from where it was saved."""
