"""The native ops, one class each. Importing them registers their implementations of `lower`.

The kernels, with their entries in the executor's table, are in `native/src/ops` and
`native/src/attention`.
"""

from quire.backends.cpu.lowering.ops import attention as attention
from quire.backends.cpu.lowering.ops import exchange as exchange
from quire.backends.cpu.lowering.ops import experts as experts
from quire.backends.cpu.lowering.ops import kernels as kernels
from quire.backends.cpu.lowering.ops import linear as linear
from quire.backends.cpu.lowering.ops import lookups as lookups
from quire.backends.cpu.lowering.ops import norm as norm
from quire.backends.cpu.lowering.ops import results as results
