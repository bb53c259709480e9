"""What plugin authors test with: a recorder, tiny models and data, and the contracts."""
