"""`python -m tilewright.ort app.py …` and `python -m tilewright.ort -m package …`: an unedited program that imports
onnxruntime, run by Tilewright.
"""

import os
import runpy
import sys

from tilewright.ort.hook import install

_USAGE = """usage: python -m tilewright.ort PROGRAM [ARGUMENTS …]
       python -m tilewright.ort -m MODULE [ARGUMENTS …]
       python -m tilewright.ort -c CODE [ARGUMENTS …]

Runs a Python program in which `import onnxruntime` gives Tilewright."""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return
    is_named = arguments[:1] in (["-m"], ["-c"])
    if len(arguments) < 1 + is_named or (not is_named and arguments[0].startswith("-")):
        print(_USAGE, file=sys.stderr)
        sys.exit(2)
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(
            compile(arguments[1], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__}
        )
    else:
        if not os.path.exists(arguments[0]):
            print(f"python -m tilewright.ort: there is no file {arguments[0]!r}", file=sys.stderr)
            sys.exit(2)
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))  # as Python does for a program
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
