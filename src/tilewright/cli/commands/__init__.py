"""The commands: a module each with name, options, help and where the work is. Options that several have are in
`cli/options.py`.

Nothing here imports the compiler, numpy or onnx (`cli/command.py` says why); a test holds parameters of the functions
to the options. A new command is a module, or a folder with its work, and its name here.
"""

from importlib import import_module

from tilewright.cli.command import Command, SubCommands
from tilewright.support.extensions import Additions

NAMES = (
    "run",
    "compile",
    "generate",
    "quantize",
    "inspect",
    "bench",
    "compare",
    "report",
    "tune",
    "db",
    "corpus",
    "cost",
    "cache",
    "doctor",
    "completion",
)  # as listed

COMMANDS: dict[str, Command | SubCommands] = {n: import_module(f"{__name__}.{n}").COMMAND for n in NAMES}
ADDED: Additions[Command] = Additions("command")


def register_command(command: Command) -> None:
    """Make a command of another package known."""
    ADDED.add({str(command.name): command}, COMMANDS)
