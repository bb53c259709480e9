"""Weights without a run: loaded into a module, exported, and read from the files of others."""
