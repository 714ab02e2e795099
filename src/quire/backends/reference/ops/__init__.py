"""The result of every op, in NumPy float32: the specification of all other backends.

Sums along a row are taken in float64. One function per op, found by its type when `run` is called;
`Frame` is all that they see of a step. Importing the modules registers their functions.
"""

from quire.backends.reference.ops import attention as attention
from quire.backends.reference.ops import exchange as exchange
from quire.backends.reference.ops import experts as experts
from quire.backends.reference.ops import linear as linear
from quire.backends.reference.ops import lookups as lookups
from quire.backends.reference.ops import norm as norm
from quire.backends.reference.ops import pointwise as pointwise
from quire.backends.reference.ops import recurrent as recurrent
from quire.backends.reference.ops import results as results
from quire.backends.reference.ops.frame import Frame as Frame
from quire.backends.reference.ops.frame import Weights as Weights
from quire.backends.reference.ops.frame import run as run
