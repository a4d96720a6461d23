"""Random models with open dimensions, one after another: `python -m tests.fuzz.open_campaign --models 2000`.

Each becomes one program, which runs at ten sizes and is compared with ONNX Runtime. It is *right*; or *refused*, with a
reason, and has a program for each shape; or *partly* refused, because some sizes do not keep the guards of the program;
or *slow*, because a kernel runs without a schedule; or *wrong*. Where the program of the static shapes is as wrong, it
is not the open dimensions' fault (*static*). ONNX Runtime does not take some models, or some sizes (*invalid*). Inputs
and results lie next to pages that nobody may touch.
"""

import argparse
import ctypes
import logging
import math
import mmap
import os
import pickle
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto

import tilewright as tw
from tests.fuzz.open_models import RandomOpenModel, feeds_at, sizes_to_try
from tests.fuzz.open_rules import OpenRule, random_open_model
from tests.onnx_cases import Array, check_outputs
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.open_sizes import OutOfRange
from tilewright.runtime.range_program import RangeProgram

TOLERANCE = 1e-3  # of the largest output: errors grow through a chain of random operators
_LONGEST = 120  # seconds that a model may take
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Outcome:
    kind: str  # right, partly, slow, refused, wrong, static, invalid
    text: str = ""
    sizes: Mapping[str, int] | None = None
    runs: int = 0  # comparisons that were made
    exact: int = 0  # of them: equal to the last bit to an earlier run of the same sizes and feeds


class _Judge:
    def __init__(self, model: ModelProto) -> None:
        runtime: Any = ort
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session: Any = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._names = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))


class _Log(logging.Handler):
    """Why there is a program for each shape, and what asks to be reported."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.reason, self.defects = "", list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("a program for each shape: "):
            self.reason = text.removeprefix("a program for each shape: ")
        if "please report" in text.lower():
            self.defects.append(text)

    def __enter__(self) -> "_Log":
        log = logging.getLogger("tilewright")
        self._before = log.level
        log.setLevel(logging.INFO)
        log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        log = logging.getLogger("tilewright")
        log.removeHandler(self)
        log.setLevel(self._before)


def _guarded(shape: Sequence[int], dtype: Any, *, at_end: bool, align: int) -> Array:
    """Zeros between pages that nobody may touch; they end, or begin, where one of these does."""
    page, size = mmap.PAGESIZE, np.dtype(dtype).itemsize * math.prod(shape)
    inside = -(-max(size, 1) // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for at in (base, base + page + inside):
        if _libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), 0):
            raise OSError("no guarded memory")
    offset = page + ((inside - size) // align * align if at_end else 0)
    return np.frombuffer(memory, np.uint8, size, offset).view(dtype).reshape(tuple(shape))


@contextmanager
def _in_guarded_memory(*, at_end: bool) -> Generator[None]:
    """Sessions made inside have their inputs and results in such memory: what leaves these ends the process."""

    def results(shape: Sequence[int], dtype: Any) -> Array:
        return _guarded(shape, dtype, at_end=at_end, align=64)

    def stages(program: RangeProgram) -> list[Array]:
        specs = [(s.shape if s.sizes else (0,), np.dtype(s.dtype)) for s in program.sizes.inputs]
        return [_guarded(shape, t, at_end=at_end, align=t.itemsize) for shape, t in specs]

    home = "tilewright.runtime.range_program"
    with patch(f"{home}.empty_aligned", results), patch(f"{home}.RangeProgram._new_stages", stages):
        yield


def check(made: RandomOpenModel, seed: int, count: int = 10, threads: int = 2) -> Outcome:
    """What becomes of a model."""
    model, dims = made.model, list(made.dims.values())
    rng = np.random.default_rng((seed, 2))
    sizes = sizes_to_try(dims, rng, count)
    at_end = seed % 4 != 0  # or at the front
    try:
        judge = _Judge(model)
        cases: list[tuple[dict[str, int], dict[str, Array], dict[str, Array]]] = []
        for at in sizes:
            feeds = {k: _copied(v, at_end) for k, v in feeds_at(model, at, rng).items()}
            want = judge.run(feeds)
            cases.append((at, feeds, want))
    except Exception as e:  # its own exceptions have no common base
        return Outcome("invalid", str(e)[:300])
    if not all(np.isfinite(w).all() for *_, want in cases for w in want.values() if w.dtype.kind == "f"):
        return Outcome("invalid", "not finite")
    with _Log() as log:
        try:
            session = tw.load(
                model, dims={d.name: (d.least, d.most, d.multiple) for d in dims}, threads=threads
            )
        except Exception as e:
            return Outcome("wrong", _said(e))
    if not isinstance(session, OpenSession):
        session.close()
        return Outcome("refused", log.reason)
    with session, _in_guarded_memory(at_end=at_end):
        outcome = _compared(model, session, cases, rng)
    return (
        replace(outcome, kind="slow", text=log.defects[0])
        if log.defects and outcome.kind == "right"
        else outcome
    )


def _copied(array: Array, at_end: bool) -> Array:
    made = _guarded(array.shape, array.dtype, at_end=at_end, align=array.itemsize)
    made[...] = array
    return made


def _compared(
    model: ModelProto,
    session: OpenSession,
    cases: Sequence[tuple[dict[str, int], dict[str, Array], dict[str, Array]]],
    rng: np.random.Generator,
) -> Outcome:
    refused, runs, exact = "", 0, 0
    first: dict[int, dict[str, Array]] = {}
    order = [*range(len(cases)), *(int(i) for i in rng.permutation(len(cases))[: len(cases) // 2])]
    for turn, n in enumerate(order):
        at, feeds, want = cases[n]
        try:
            if turn % 4 == 1 or turn % 4 == 2:  # at the largest sizes, what is left in memory is not finite
                _poison(session, cases[0][1], (np.nan, np.inf)[turn % 2])
            got = {k: np.array(v) for k, v in session.run(feeds).items()}
            runs += 1
            check_outputs(got, want, TOLERANCE)
            if n in first:
                for name, value in got.items():
                    np.testing.assert_array_equal(value, first[n][name], err_msg=f"{name}: a second run")
                exact += 1
            first[n] = got
        except OutOfRange as e:
            refused = e.message
        except Exception as e:
            said = _said(e)
            static = _static(model, feeds, want)
            if static is not None:
                return Outcome("static", static, at, runs)
            return Outcome("wrong", said, at, runs)
    return Outcome("partly" if refused else "right", refused, None, runs, exact)


def _poison(session: OpenSession, feeds: Mapping[str, Array], value: float) -> None:
    bad = {k: np.full_like(v, value) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    try:
        session.run(bad)
    except OutOfRange:
        return


def _static(model: ModelProto, feeds: Mapping[str, Array], want: Mapping[str, Array]) -> str | None:
    """What is wrong with the program of these shapes alone; None if nothing is."""
    try:
        with tw.load(model, shapes={k: v.shape for k, v in feeds.items()}) as session:
            check_outputs(session.run(feeds), want, TOLERANCE)
    except Exception as e:
        return _said(e)
    return None


def _said(e: Exception) -> str:
    at = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {str(e)[:600]}\n  in {Path(at.filename).name}:{at.lineno}"


def lines(model: ModelProto) -> list[str]:
    """The model as text."""
    shapes = {w.name: f"const{list(w.dims)}" for w in model.graph.initializer}
    for w in model.graph.initializer:
        if w.data_type == onnx.TensorProto.INT64 and math.prod(w.dims) <= 8:
            shapes[w.name] = f"{onnx.numpy_helper.to_array(w).tolist()}"
    for v in model.graph.input:
        dims = [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        shapes[v.name] = f"{v.name}{dims}"
    found = list[str]()
    for n in model.graph.node:
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}
        inputs = ", ".join(shapes.get(i, i) for i in n.input)
        found.append(f"{', '.join(n.output)} = {n.op_type}({inputs}) {attrs or ''}")
    return [*found, f"outputs {', '.join(o.name for o in model.graph.output)}"]


def smallest(made: RandomOpenModel, seed: int, wanted: str, tries: int = 60) -> RandomOpenModel:
    """The same outcome with fewer nodes: one value as the only output, if that does."""
    model = made.model
    for n in model.graph.node[:tries]:
        for name in n.output:
            part = _up_to(model, name)
            if part is None:
                continue
            names = {
                d.dim_param for v in part.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param
            }
            smaller = RandomOpenModel(part, {k: d for k, d in made.dims.items() if k in names})
            if names and check(smaller, seed).kind == wanted:
                return smaller
    return made


def _up_to(model: ModelProto, output: str) -> ModelProto | None:
    needed, kept = {output}, list[Any]()
    for n in reversed(model.graph.node):
        if needed & set(n.output):
            kept.insert(0, n)
            needed |= set(n.input)
    inputs = [v for v in model.graph.input if v.name in needed]
    constants = [w for w in model.graph.initializer if w.name in needed]
    if not inputs:
        return None
    result = [onnx.helper.make_empty_tensor_value_info(output)]
    graph = onnx.helper.make_graph(kept, "part", inputs, result, initializer=constants)
    return onnx.helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)


def told(made: RandomOpenModel, seed: int, outcome: Outcome) -> str:
    dims = ", ".join(str(d) for d in made.dims.values())
    text = "\n".join(f"    {line}" for line in lines(made.model))
    return f"seed {seed}: {outcome.kind} at {outcome.sizes} ({dims}): {outcome.text}\n{text}"


def check_seed(
    seed: int, rules: Sequence[OpenRule] | None = None, *, small: bool = True
) -> tuple[Outcome, str]:
    """The outcome, and what there is to say of one that is wrong."""
    made = random_open_model(seed, rules)
    outcome = check(made, seed)
    if outcome.kind != "wrong":
        return outcome, ""
    if small:
        made = smallest(made, seed, "wrong")
        again = check(made, seed)
        outcome = again if again.kind == "wrong" else outcome
    return outcome, told(made, seed, outcome)


def check_apart(seed: int, folder: Path | None = None) -> tuple[Outcome, str]:
    """The same in a process of its own, which may crash."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(_LONGEST)
        with os.fdopen(write, "wb") as out:
            pickle.dump(check_seed(seed), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as found:
        data = found.read()
    _, status = os.waitpid(child, 0)
    if data:
        return pickle.loads(data)
    made = random_open_model(seed)
    outcome = Outcome("wrong", f"crash: the process ended with {status}")
    return outcome, told(made, seed, outcome)


def short(reason: str) -> str:
    """Without names and numbers, so that the same reasons are counted together."""
    text = reason.splitlines()[0] if reason else "?"
    text = re.sub(r"%?[\w.]*_\d+\w*", "…", text)
    return re.sub(r"\d+", "#", text)[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--models", type=int, default=2000, help="valid models to check")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then")
    parser.add_argument("--folder", type=Path, default=None, help="where models that are wrong are saved")
    args = parser.parse_args()
    os.environ["TILEWRIGHT_CACHE"] = "off"
    outcomes, reasons, operators = Counter[str](), Counter[str](), Counter[str]()
    example: dict[str, int] = {}
    runs = exact = 0
    start, seed = time.monotonic(), args.first
    while (
        sum(outcomes.values()) - outcomes["invalid"] < args.models and time.monotonic() - start < args.seconds
    ):
        outcome, text = check_apart(seed)
        outcomes[outcome.kind] += 1
        runs, exact = runs + outcome.runs, exact + outcome.exact
        if outcome.kind in ("right", "partly"):
            operators.update({n.op_type for n in random_open_model(seed).model.graph.node})
        if outcome.kind in ("refused", "partly", "static", "slow"):
            reason = f"{outcome.kind}: {short(outcome.text)}"
            reasons[reason] += 1
            example.setdefault(reason, seed)
        if outcome.kind == "invalid" and os.environ.get("SHOW_INVALID"):
            reasons[f"invalid: {short(outcome.text)}"] += 1
        if text:
            print(text, flush=True)
            if args.folder is not None:
                args.folder.mkdir(parents=True, exist_ok=True)
                (args.folder / f"{seed}.onnx").write_bytes(random_open_model(seed).model.SerializeToString())
        seed += 1
        if (seed - args.first) % 50 == 0:
            print(
                f"{time.monotonic() - start:6.0f} s, {seed - args.first} seeds: {dict(outcomes)}", flush=True
            )
    print(
        f"\nseeds {args.first} to {seed - 1}, {time.monotonic() - start:.0f} s; {runs} runs compared, {exact} repeated"
    )
    for kind, n in outcomes.most_common():
        print(f"| {kind} | {n} |")
    print("reasons:")
    for reason, n in reasons.most_common():
        print(f"  {n:4} {reason}  (seed {example.get(reason, '?')})")
    print("operators in models that ran:", ", ".join(f"{k} {n}" for k, n in operators.most_common()))


if __name__ == "__main__":
    main()
