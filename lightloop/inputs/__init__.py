"""What users hand over: functions, optimizers, loaders, batches, and what their steps return."""
