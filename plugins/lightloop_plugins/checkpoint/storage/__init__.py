"""Where checkpoints are kept: directories and remote places, which of them to resume from, and which are deleted."""
