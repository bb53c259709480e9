"""What is in a checkpoint: everything that a run needs to resume bit-exactly."""
