"""A value of a graph as programs know it: what compiled code, files and other processes are told of a tensor."""

from tilewright.graph.value import Value
from tilewright.support.artifact import TensorSpec
from tilewright.support.sizes import SymInt, capacity, is_open


def value_spec(value: Value) -> TensorSpec:
    shape = tuple(map(capacity, value.shape))
    sizes = tuple(n.size if isinstance(n, SymInt) else None for n in value.shape)
    return TensorSpec(value.name, value.type.dtype.numpy.name, shape, sizes if is_open(value.shape) else ())
