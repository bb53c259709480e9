"""How a checkpoint is written down: trees, tensors and the manifest, read with every claim checked."""
