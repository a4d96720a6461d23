"""Runs programs that Tilewright has compiled (`.tw` files): numpy and ml_dtypes are all it needs.

    session = tilewright_runtime.load("model.tw")
    outputs = session.run({"x": x})

A session is that of `tilewright.load`. The modules of this package are those of `tilewright` under another name: both
can be installed.
"""

from tilewright.runtime.load_program import load_program as load
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Bound, Session
from tilewright.support.errors import InternalError, TilewrightError, UserError
from tilewright.version import __version__

__all__ = [
    "Bound",
    "InternalError",
    "OpenSession",
    "Session",
    "TilewrightError",
    "UserError",
    "__version__",
    "load",
]
