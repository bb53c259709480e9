"""Whether this process is the kernel of a notebook."""

from __future__ import annotations

import sys


def in_notebook() -> bool:
    """Whether what is shown goes to a notebook; to have imported a package of Jupyter's does not make it one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
