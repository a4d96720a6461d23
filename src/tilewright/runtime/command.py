"""`tilewright-run`: a compiled program is run once, from a shell. The command of `tilewright-runtime`.

Output with `--json` and exit statuses are those of `tilewright run`, but nothing besides numpy is needed: tables are
plain text, and options are read by argparse.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from tilewright.runtime.load_program import load_program
from tilewright.runtime.made_feeds import check_named, fill_feeds, output_statistics, read_npy, write_npy
from tilewright.support.errors import UserError
from tilewright.version import __version__

_OK, _USER_ERROR, _INTERNAL_ERROR, _INTERRUPTED = 0, 1, 3, 130
_COLUMNS = ("output", "type", "shape", "min", "max", "mean")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except UserError as e:
        print(f"error: {e.for_command()}", file=sys.stderr)
        return _USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception:
        traceback.print_exc()
        print("This is a mistake of Tilewright's. Please report it with the text above.", file=sys.stderr)
        return _INTERNAL_ERROR
    return _OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tilewright-run",
        description="Run a compiled program (.tw) once, on files or random numbers. A program is native code: run it"
        " only if you trust where it came from.",
    )
    parser.add_argument("program", metavar="PROGRAM.tw")
    for flag, metavar, text in (
        ("--input", "NAME=FILE.npy", "value of an input; others get random numbers"),
        ("--output", "NAME=FILE.npy", "write an output to a file"),
        ("--dim", "NAME=SIZE", "size of an open dimension [default: that of the files, or the largest]"),
    ):
        parser.add_argument(
            flag,
            metavar=metavar,
            help=f"{text}; may be repeated",
            action="append",
            default=[],
            type=_assignment,
        )
    parser.add_argument("--threads", type=_positive, help="[default: cores this process may use]")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs [default: 0]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--version", action="version", version=f"tilewright-run, version {__version__}")
    return parser


def _assignment(text: str) -> tuple[str, str]:
    """The last `=` separates, because names of tensors may contain one."""
    name, _, value = text.rpartition("=")
    if not (name and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of threads")
    return int(text)


def _run(options: argparse.Namespace) -> None:
    session = load_program(options.program, threads=options.threads)
    names = [o.name for o in session.outputs]
    files, saves = dict(options.input), dict(options.output)
    check_named(files, session.inputs)
    for name in saves:
        if name not in names:
            raise UserError(f"the model has no output {name!r}", hint=f"its outputs are: {', '.join(names)}")
    given = {name: read_npy(path) for name, path in files.items()}
    results = session.run(fill_feeds(session.inputs, given, options.seed, _sizes(options.dim)))
    for name, path in saves.items():
        write_npy(path, results[name])
    rows = [{"name": name, **output_statistics(results[name])} for name in names]
    print(json.dumps({"outputs": rows}, indent=2, ensure_ascii=False) if options.json else _table(rows))


def _sizes(given: Sequence[tuple[str, str]]) -> dict[str, int]:
    for name, text in given:
        if not text.isdecimal():
            raise UserError(f"{text!r} is not a size of {name}", hint=f"give a whole number: --dim {name}=16")
    return {name: int(text) for name, text in given}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [_COLUMNS, *(map(str, _cells(row)) for row in rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = (
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in zip(*columns, strict=True)
    )
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = ["not finite" if row[k] is None else f"{row[k]:.6g}" for k in ("min", "max", "mean")]
    return [row["name"], row["dtype"], "x".join(map(str, row["shape"])) or "scalar", *numbers]


if __name__ == "__main__":
    sys.exit(main())
