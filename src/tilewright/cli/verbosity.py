"""How much a command says on stderr: `-v` (what is decided on the way), `-vv` (all of the log), `-q` (errors only).

They may stand before the command or after it, and add up. Without either, warnings are shown. Results, and the message
that a command ends with if it fails, are shown always.
"""

import logging

import click

_LOG = logging.getLogger("tilewright")
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _StderrHandler(logging.Handler):
    """To the stderr of the moment, which tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


_HANDLER = _StderrHandler()
_asked = {"verbose": 0, "quiet": 0}


def reset_verbosity() -> None:
    """A command begins."""
    _asked.update(verbose=0, quiet=0)
    _LOG.removeHandler(_HANDLER)
    _LOG.setLevel(logging.NOTSET)


def is_quiet() -> bool:
    return _asked["quiet"] > 0


def _add(ctx: click.Context, param: click.Parameter, count: int) -> None:
    _asked[str(param.name)] += count
    if all(_asked.values()):
        raise click.UsageError("-v and -q exclude each other.", ctx)
    if _asked["quiet"]:
        _LOG.setLevel(logging.ERROR)
    elif _asked["verbose"]:
        _LOG.setLevel(_LEVELS[min(_asked["verbose"], len(_LEVELS) - 1)])
        _LOG.addHandler(_HANDLER)


VERBOSE = click.Option(
    ["-v", "--verbose"],
    count=True,
    expose_value=False,
    callback=_add,
    help="Say on stderr what is decided; -vv: all of the log.",
)
QUIET = click.Option(
    ["-q", "--quiet"],
    count=True,
    expose_value=False,
    callback=_add,
    help="No progress, remarks and warnings; errors are shown.",
)
