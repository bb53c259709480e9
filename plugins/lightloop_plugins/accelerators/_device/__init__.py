"""What the device plugins share: which device there is, and how modules and batches get there."""
