"""A command whose work is in a module that is imported, by name, when the command line has been read.

The compiler, numpy and onnx take a second to import. `--help`, a mistyped option and a path that leads nowhere need
none of them.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tilewright.cli.interrupts import raising_interrupts
from tilewright.cli.verbosity import QUIET, VERBOSE
from tilewright.support.errors import UserError
from tilewright.support.extensions import load_extensions


class Command(click.Command):
    """`work` is `module:function`. The function takes the values of `params` by their names, and returns the status to
    end with, or None.
    """

    def __init__(self, name: str, work: str, help: str, params: Sequence[click.Parameter]) -> None:
        super().__init__(name, help=help, params=list(params))
        self.work = work

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """With those that all commands have, which the work does not get."""
        *own, help_option = super().get_params(ctx)
        return [*own, VERBOSE, QUIET, help_option]

    def invoke(self, ctx: click.Context) -> Any:
        if isinstance(model := ctx.params.get("model"), Path):
            check_exists(model)
        load_extensions()
        module, _, function = self.work.partition(":")
        work = getattr(import_module(module), function)
        with raising_interrupts():
            return work(**ctx.params)


class SubCommands(click.Group):
    """Commands that have a first word in common."""

    def __init__(self, name: str, help: str, commands: Sequence[Command]) -> None:
        super().__init__(name, help=help, commands=list(commands))


def check_exists(path: Path) -> None:
    try:
        os.stat(path)
    except (OSError, ValueError) as e:  # ValueError: a zero byte
        is_absent = isinstance(e, FileNotFoundError)
        raise UserError(
            f"cannot read {path}: {getattr(e, 'strerror', None) or e}",
            hint="check the path, and the folder that you are in" if is_absent else None,
        ) from e
