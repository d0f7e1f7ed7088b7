"""Arrays that grow."""

from __future__ import annotations

import numpy as np

from nest._kernels import kernel


@kernel
def longer(array, rows):
    """The same with room for ``rows``; what is behind those that it had is not set."""
    found = np.empty((rows, *array.shape[1:]), array.dtype)
    # Element by element: slices that are assigned come with the code of their error messages.
    for x in range(array.size):
        found.flat[x] = array.flat[x]
    return found
