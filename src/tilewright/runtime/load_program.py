"""A compiled program from its file to a session, without the compiler: all that `tilewright-runtime` has to do."""

from pathlib import Path
from typing import TypeAlias

from tilewright.runtime.file import load_artifact
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.support.errors import UserError

ProgramSession: TypeAlias = Session | OpenSession


def load_program(path: str | Path, *, threads: int | None = None) -> ProgramSession:
    """A session for a `.tw` file, with open dimensions or without. `threads` is how many run it: one for each core that
    the process may use, by default.

    A program is native code: load it only if you trust where it came from.
    """
    if Path(path).suffix == ".onnx":
        raise UserError(
            "this runs compiled programs, and the file is a model",
            where=str(path),
            hint="compile it: pip install tilewright, and tilewright compile MODEL.onnx",
        )
    program = load_artifact(path)
    if program.regions:
        names = ", ".join(dict.fromkeys(r.plugin for r in program.regions))
        raise UserError(
            f"parts of the program are run by plugins ({names}), which the runtime alone has not",
            where=str(path),
            hint="compile the model without plugins; or install tilewright, whose `load` runs them",
        )
    return OpenSession(program, threads) if program.manifest.dims else Session(program, threads)
