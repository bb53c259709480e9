"""``python -m lightloop``: the command ``lightloop``."""

from __future__ import annotations

import sys

from lightloop.cli.front import main

if __name__ == "__main__":
    sys.exit(main())
