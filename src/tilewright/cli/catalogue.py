"""The engines that `tilewright bench --against` knows: where their code is, what they need, how to get it. Ours without
plugins is one of them; any other is given as `module:Class` (`tilewright.cli.guest` says what the class must have).

An engine runs in the interpreter given by `--python ENGINE=PATH`, by the environment variable
`TILEWRIGHT_PYTHON_<ENGINE>`, or in ours.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Peer:
    """`source` is the class (module:name) that the engine's process makes; `packages` are imported before, so that a
    missing one is reported by its name. `folder` is where another interpreter than ours finds the module, if it is
    neither installed there nor in PYTHONPATH.
    """

    name: str
    title: str
    source: str
    packages: tuple[str, ...]
    install: str
    folder: str = ""

    @property
    def hint(self) -> str:
        return (
            f"{self.install}; or name an interpreter that has it: --python {self.name}=PATH"
            f" or {python_variable(self.name)}"
        )


OURS = Peer("tilewright", "Tilewright", "tilewright.cli.own_engine:OwnEngine", (), "")
NATIVE = Peer("native", "Tilewright without plugins", OURS.source, (), "")

ORT = Peer(
    "ort",
    "ONNX Runtime",
    "tilewright_guest.ort:OnnxRuntimeGuest",
    ("onnxruntime",),
    "pip install 'tilewright[ort]'",
)

PEERS: Mapping[str, Peer] = {p.name: p for p in (ORT, NATIVE)}


def find_peers(names: Iterable[str], catalogue: Mapping[str, Peer] = PEERS) -> dict[str, Peer]:
    """Engines by their names. One that is given as `module:Class` is called after the class, in lower case."""
    found: dict[str, Peer] = {}
    for name in dict.fromkeys(names):
        peer = catalogue.get(name) or _told(name, catalogue)
        if peer.name in found or peer.name == OURS.name:
            raise UserError(f"two engines are called {peer.name!r}", hint="give a class another name")
        found[peer.name] = peer
    return found


def _told(source: str, catalogue: Mapping[str, Peer]) -> Peer:
    module, _, kind = source.partition(":")
    if not (kind.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise UserError(
            f"{source!r} is none of {', '.join(catalogue)}, nor a class of your own such as my_engines:Engine"
        )
    return Peer(kind.lower(), kind, source, (), f"put {module} into PYTHONPATH, and install what it imports")


def python_variable(engine: str) -> str:
    return f"TILEWRIGHT_PYTHON_{engine.upper()}"


def interpreter(engine: str, given: Mapping[str, str]) -> str:
    """The interpreter to run an engine in; it exists."""
    setting = given.get(engine) or os.environ.get(python_variable(engine))
    if not setting:
        return sys.executable
    found = shutil.which(os.path.expanduser(setting))
    if found is None:
        raise UserError(
            f"there is no interpreter {setting!r} for {engine}",
            hint=f"give the path of a Python executable with --python {engine}=PATH",
        )
    return os.path.abspath(found)
