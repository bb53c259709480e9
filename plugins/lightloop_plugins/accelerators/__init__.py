"""Devices and strategies: where a model runs, and on how many processes."""
