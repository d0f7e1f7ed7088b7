"""`python -m nest`: the command `nest`."""

from __future__ import annotations

import sys

from nest.cli.main import main

sys.exit(main())
