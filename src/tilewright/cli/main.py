"""The `tilewright` command: what goes where, and which status a run ends with.

Results go to stdout, messages to stderr. The exit status is part of the interface:

    0    done
    1    the input is at fault (model, file, option value): a message without a traceback
    2    the command line is at fault
    3    we are at fault: a traceback worth reporting
    4    the model ran, and its result is not what was asked for
    130  interrupted
"""

import os
import sys
import traceback
from typing import Any, NoReturn

import click

from tilewright.cli.bench import bench
from tilewright.cli.compare import compare
from tilewright.cli.compile import compile_model
from tilewright.cli.doctor import doctor
from tilewright.cli.inspect import inspect
from tilewright.cli.probe import probe
from tilewright.cli.run import run
from tilewright.cli.status import Status
from tilewright.cli.tune import tune
from tilewright.support.errors import UserError
from tilewright.version import __version__


class Program(click.Group):
    """A group whose failures end in the documented exit statuses, whoever calls it."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        sys.exit(
            self._status(*args, **{**extra, "standalone_mode": False})
        )  # click gives every failure status 1

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Status.OK

    def _status(self, *args: Any, **extra: Any) -> int:
        try:
            return super().main(*args, **extra) or Status.OK
        except click.ClickException as e:
            e.show()
            return Status.USAGE if isinstance(e, click.UsageError) else Status.USER_ERROR
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            return Status.INTERRUPTED
        except UserError as e:
            click.echo(f"error: {e}", err=True)
            return Status.USER_ERROR
        except Exception:
            click.echo(traceback.format_exc(), err=True)
            click.echo("This is a mistake of Tilewright's. Please report it with the text above.", err=True)
            return Status.INTERNAL_ERROR


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilewright")
def main() -> None:
    """Compile models to native programs, run them, look inside, measure and tune."""


for command in (run, compile_model, inspect, bench, compare, tune, doctor, probe):
    main.add_command(command)
