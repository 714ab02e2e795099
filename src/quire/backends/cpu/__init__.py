"""The native CPU backend: a program lowered to a flat list of C++ ops, one call per step.

`load` finds the library for this machine, `CpuBackend` computes with it, and `machine` reports the
number of threads and the instruction-set tiers.
"""

from quire.backends.cpu.backend import CpuBackend
from quire.backends.cpu.library import Library, load
from quire.backends.cpu.machine import cpu_report, default_num_threads

__all__ = ["CpuBackend", "Library", "cpu_report", "default_num_threads", "load"]
