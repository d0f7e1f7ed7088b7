"""Layers that other software has measured, as profiles of NEST; nothing is unpickled or executed.

`planners` reads the profiles of Metis and of Galvatron, joins equal layers and writes a file;
`torch_trace` reads traces of the profiler of PyTorch.
"""

from nest.measured.profiles.planners import from_galvatron, from_metis
from nest.measured.profiles.torch_trace import from_trace

__all__ = ["from_galvatron", "from_metis", "from_trace"]
