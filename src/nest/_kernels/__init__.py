"""Compiled kernels: NumPy and numba only, arrays in, arrays out.

``CACHE`` is read when the kernels are decorated; :mod:`nest.compiled` clears it where no folder
can be written.
"""

CACHE = True
