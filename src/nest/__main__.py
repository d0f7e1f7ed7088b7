"""`python -m nest`: the command `nest`."""

from __future__ import annotations

import sys

from nest.cli.main import main

if __name__ == "__main__":  # workers of MPI import it under another name
    sys.exit(main())
