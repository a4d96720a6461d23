"""PyTorch models as compiled programs: `torch.compile(model, backend="tilewright")` and `tw.from_torch`.

Importing this package makes the backend known to torch by its name; an entry point does the same for those who do not
import it. torch is an extra, so it is imported by name when it is needed (`torch_module.py`).
"""

from tilewright.dynamo.backend import compile_fx_graph, register
from tilewright.dynamo.explain import Explanation, GraphReport, explain, reports, reset
from tilewright.dynamo.exported import TorchSession, from_torch

__all__ = [
    "Explanation",
    "GraphReport",
    "TorchSession",
    "compile_fx_graph",
    "explain",
    "from_torch",
    "register",
    "reports",
    "reset",
]

register()
