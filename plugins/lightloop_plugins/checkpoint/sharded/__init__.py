"""Checkpoints of runs in which each rank has a part of the tensors."""
