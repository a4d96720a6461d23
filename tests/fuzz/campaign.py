"""Random models, one after another: `python -m tests.fuzz.campaign --seconds 300 --first 0 --rules chains`.

A failure is printed with its seed and its smallest form, which is saved as `<folder>/<seed>.onnx`.
"""

import argparse
import logging
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

import tilewright as tw
from tests.fuzz.minimize import minimize
from tests.fuzz.rules import CHAINS, RULES, Rule, random_model
from tests.onnx_cases import Array, check_outputs, random_feeds, run_onnxruntime
from tilewright.support.errors import MultipleProgramsError

TOLERANCE = 1e-3  # of the largest output: errors grow through a chain of random operators


def failure(model: ModelProto, feeds: Mapping[str, Array], target: str = "native") -> str | None:
    """What is wrong with our result; None if nothing is, or if onnxruntime has no finite one."""
    try:
        want = run_onnxruntime(model, feeds)
    except Exception:  # its own exceptions have no common base
        return None
    if not all(np.isfinite(w).all() for w in want.values() if w.dtype.kind == "f"):
        return None
    try:
        with _Defects() as defects:
            got, again = _run(model, feeds, target)
        assert not defects.found, defects.found[0]
        check_outputs(got, want, TOLERANCE)
        for name, value in got.items():
            np.testing.assert_array_equal(again[name], value, err_msg=f"{name}: two threads")
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__}: {e}\n  in {Path(at.filename).name}:{at.lineno}"
    return None


class _Defects(logging.Handler):
    """Warnings that ask to be reported: what a schedule was not fit for runs without one, slowly."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "Please report this" in record.getMessage():
            self.found.append(record.getMessage())

    def __enter__(self) -> "_Defects":
        logging.getLogger("tilewright").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("tilewright").removeHandler(self)


def _run(model: ModelProto, feeds: Mapping[str, Array], target: str) -> list[dict[str, Array]]:
    """What one thread makes of it, and what two do."""
    try:
        compiled = tw.compile(model, target=target)
    except MultipleProgramsError:  # the host runs a part of it
        sessions = [tw.load(model, target=target, threads=n) for n in (1, 2)]
    else:
        sessions = [compiled.session(threads=n) for n in (1, 2)]
    made: list[dict[str, Array]] = []
    for session in sessions:
        with session:
            made.append(session.run(feeds))
    return made


def check_seed(seed: int, folder: Path, target: str = "native", rules: Sequence[Rule] = RULES) -> str | None:
    """The failure of the random model `seed` in its smallest form, which is saved in `folder`."""
    model = random_model(seed, rules)
    feeds = random_feeds(model, seed)
    first = failure(model, feeds, target)
    if first is None:
        return None
    kind = first.split(":")[0]
    small, fed = minimize(model, feeds, lambda m, f: (failure(m, f, target) or "").startswith(kind))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}.onnx"
    onnx.save(small, path)
    text = "\n".join(f"    {line}" for line in _lines(small))
    return f"seed {seed}: {failure(small, fed, target) or first}\n{text}\n  saved as {path}"


def _lines(model: ModelProto) -> list[str]:
    shapes = {w.name: f"const{list(w.dims)}" for w in model.graph.initializer}
    for v in model.graph.input:
        shapes[v.name] = f"{v.name}{[d.dim_value for d in v.type.tensor_type.shape.dim]}"
    lines = list[str]()
    for n in model.graph.node:
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}
        inputs = ", ".join(shapes.get(i, i) for i in n.input)
        lines.append(f"{', '.join(n.output)} = {n.op_type}({inputs}) {attrs or ''}")
    return [*lines, f"outputs {', '.join(o.name for o in model.graph.output)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--target", default="native")
    parser.add_argument("--rules", choices=("all", "chains"), default="all", help="what models are made of")
    args = parser.parse_args()
    os.environ["TILEWRIGHT_CACHE"] = "off"
    end, seed, failed = time.monotonic() + args.seconds, args.first, 0
    while time.monotonic() < end:
        message = check_seed(seed, args.folder, args.target, RULES if args.rules == "all" else CHAINS)
        if message is not None:
            failed += 1
            print(message, flush=True)
        seed += 1
    print(f"{seed - args.first} models, {failed} failed")


if __name__ == "__main__":
    main()
