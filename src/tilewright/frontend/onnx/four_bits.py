"""Constants of INT4 and UINT4 as the bytes that stand for the same numbers, which native code has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import ml_dtypes
import numpy as np
from onnx import NodeProto

from tilewright.frontend.onnx.nodes import NodeSite
from tilewright.ops.hostop import HostValue
from tilewright.support.arrays import Array

_BYTES_OF = {np.dtype(ml_dtypes.int4): np.dtype(np.int8), np.dtype(ml_dtypes.uint4): np.dtype(np.uint8)}


class InBytes(NamedTuple):
    """A node that reads bytes, and these by their names."""

    site: NodeSite
    arrays: Mapping[str, Array]


def in_bytes(site: NodeSite, opaque: Mapping[str, HostValue]) -> InBytes | None:
    """The node with other inputs instead of those that native code does not have; None if one of them is nothing else.
    `opaque` has the values of these, as far as they are known.
    """
    node, arrays = NodeProto(), dict[str, Array]()
    node.CopyFrom(site.node)
    for n, name in enumerate(site.node.input):
        if name not in opaque:
            continue
        found = opaque[name]
        array: Array | None = found if isinstance(found, np.ndarray) else None
        wide = None if array is None else _BYTES_OF.get(array.dtype)
        if array is None or wide is None:
            return None
        node.input[n] = f"{name}~{wide}"
        arrays[node.input[n]] = array.astype(wide)
    return InBytes(replace(site, node=node), arrays)
