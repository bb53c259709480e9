from tests.checkpoint.conftest import tmp_path as tmp_path  # in memory: the contract saves in each row about resuming
