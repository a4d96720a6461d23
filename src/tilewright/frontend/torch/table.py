"""Which operators can be written in ONNX, by name. To add one: a function in a module of `aten`, a line in its table,
and a case in `tests/unit/test_torch_operators.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.frontend.torch.aten import (
    activation,
    attention,
    contraction,
    creation,
    elementwise,
    image,
    indexing,
    movement,
    norm,
    recurrent,
    reduction,
    sizes,
)

OPERATORS: Mapping[str, Callable[..., Any]] = {
    **elementwise.ENTRIES,
    **activation.ENTRIES,
    **reduction.ENTRIES,
    **contraction.ENTRIES,
    **norm.ENTRIES,
    **attention.ENTRIES,
    **movement.ENTRIES,
    **indexing.ENTRIES,
    **creation.ENTRIES,
    **image.ENTRIES,
    **recurrent.ENTRIES,
    **sizes.ENTRIES,
}
