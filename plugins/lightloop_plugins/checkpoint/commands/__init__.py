"""The commands ``lightloop checkpoint`` and ``lightloop verify-resume``; they read checkpoints and rename or delete none."""
