"""numba's compiler for parts of kernels: no machine code of their own.

numba emits machine code for each function that it compiles, and with it once more for all that it
calls: a fifth of the time. What is only linked into its callers needs none. The names overridden
here are numba's own, not its public interface: tried with 0.61.0 and 0.68.1.
"""

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class Part(JITCodeLibrary):
    """Optimised code that waits to be linked, in place of a library that can be run."""

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name):
        """0: there is none."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self):
        """Who is told of the environment of what is run: nobody."""
        return self

    def set_env(self, name, env):
        """See :attr:`codegen`."""


class Linked(Compiler):
    """Compiles a function into a :class:`Part`."""

    def compile_extra(self, function):
        """Called by numba, before anything else."""
        self.state.library = Part(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)
