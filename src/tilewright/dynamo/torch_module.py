"""torch, which is an extra, and its tensors as numpy's arrays without copies.

torch's own types are not checked here: its stubs leave most of what a backend touches unknown.
"""

from functools import cache
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.support.arrays import Array, OpaqueArray
from tilewright.support.errors import UserError

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@cache
def torch_module(name: str = "torch") -> Any:
    try:
        return import_module(name)
    except ImportError as e:
        raise UserError("PyTorch is not installed", hint="pip install 'tilewright[torch]'") from e


def tensor_array(tensor: Any) -> Array:
    """The tensor's own memory; a copy where numpy has no word for how it is laid out (conjugates, negatives)."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bfloat16":
        return tensor.view(torch_module().int16).numpy().view(_BFLOAT16)
    try:
        return tensor.numpy()
    except RuntimeError:
        return tensor.resolve_conj().resolve_neg().contiguous().numpy()


def constant_array(tensor: Any) -> Array:
    """`tensor_array` of a constant of a graph, which is a real tensor: while PyTorch traces, it lets no operator touch
    any but fake ones.
    """
    with torch_module("torch._subclasses.fake_tensor").unset_fake_temporarily():
        return tensor_array(tensor)


def as_tensor(array: OpaqueArray) -> Any:
    """A tensor over the array's memory, which it keeps."""
    torch = torch_module()
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
