"""Layers that other software has measured, as profiles of NEST; nothing is unpickled or executed.

`metis` reads the profiles of Metis, `galvatron` those of Galvatron, `torch_trace` traces of the
profiler of PyTorch, through `spans` (which layer each kernel belongs to). `written` joins equal
layers and writes a file.
"""

from nest.measured.profiles.galvatron import from_galvatron
from nest.measured.profiles.metis import from_metis
from nest.measured.profiles.torch_trace import from_trace

__all__ = ["from_galvatron", "from_metis", "from_trace"]
