"""A command: `tilewright toy MODEL --json` counts the nodes of a model."""

from tilewright.cli.command import Command
from tilewright.cli.options import JSON, MODEL

COMMAND = Command("toy", "toy_extension.count:count", "Count the nodes of MODEL.", [MODEL, JSON])
