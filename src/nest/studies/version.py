"""The version of NEST, which is part of what decides an answer."""

from __future__ import annotations

import sys

VERSION: str = sys.modules["nest"].__version__
"""Not imported by name: the package hands names of this folder on, which would be a circle."""
