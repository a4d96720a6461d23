"""The errors of our elementary functions, with and without FMA; the operations and the time they take."""

import math
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.interleave import interleave
from benchmarks.onnx_runtime import BoundOnnxRuntime
from benchmarks.results import table, write
from examples.models import Net
from tilewright.compiler import compile as compile_model
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    walk,
)
from tilewright.ir.rewrite import transform
from tilewright.support.affinity import pinned
from tilewright.support.turns import speedup
from tilewright.tir.passes.expand_math import expand_expr
from tilewright.tir.passes.split_fma import split_expr

Array: TypeAlias = NDArray[Any]
Reference: TypeAlias = Callable[..., Array]

SHOWS = (
    """How exact our vector functions are, in units of the last place, and how fast beside ONNX Runtime's."""
)

METHOD = """*ULP*: the largest error in units of the last place of the exact result, and the argument where it was
found. f32: {count:,} floats of all exponents and both signs, evenly spread over their bits, and as many in the range
where the function is neither constant nor linear; against float64. f64: {count64:,} of each kind, against 80-bit
arithmetic (erf: against a libm whose own error is up to 1 ULP). The expressions are evaluated by the interpreter,
whose bits native code reproduces.

*Operations* are those of the expression: instructions per vector of f32 (8 lanes with AVX2). Those on f64 are given
apart, and count twice in the sum. A comparison and the `Select` that it feeds count one each, though together they may
be one `min` or `max`; constants and bitcasts are free.

*Time*: one ONNX node over {elements:,} elements in L2, one thread; ours and ONNX Runtime take turns in {rounds} rounds.
*against ONNX Runtime*: its time over ours, above 1 is faster."""

NOTES = """- Special values (infinities, NaN, signed zeros, denormals) are those of C99, with and without FMA; denormal
  results round once.
- Over every f32 in whose neighbourhood the function is not constant or linear (in a native loop, once; this command
  does not repeat it), the largest errors were: exp 0.91, sigmoid 2.00, tanh 1.53, erf 2.81, log 1.04, sin 1.58,
  cos 1.58, rsqrt 1.49 ULP.
- Over every f32 of the range, exp_nonpositive has at most 1.88 ULP (from -110 to -1e-8), and gelu_erf 6.1 ULP where
  x > 0, 17.6 down to x = -3, 78.9 down to -4, and below an absolute error of 1.2e-9
  (`tests/unit/test_vector_math_exhaustive.py`).
- sin and cos of f32 hold for all finite arguments. In f64 they are accurate up to about 1.6 million (2²⁰ quarter
  turns); beyond, the absolute error grows with the argument times 2⁻⁵³.
- pow of f64 is measured for |y · log2 x| ≤ 100; towards the ends of the range the error grows to about 30 ULP.
- exp_nonpositive is exp of what is known to be at most 0: x - max x in softmax and attention. Its polynomial in f32 is
  of one degree less, and one factor scales it where exp needs two, so it takes 13 operations instead of 20.
- gelu_erf is x · Φ(x). As max(x, 0) - |x| · Φ(-|x|) it does not cancel where x < 0: in f32 its relative error is up to
  1.2e-6 down to x = -3, 5e-6 at -4 and 8e-4 at -5 (½·x·(1 + erf) has 2.2e-5, 1.1e-3 and 0.07), and its absolute error
  below -4 at most 1.2e-9. In f64 the errors down to -2, -3 and -4 are 9, 20 and 257 ULP, at most 1.1e-16. The tanh
  form is x · sigmoid(2u), within 1.3e-6 down to -4.
- f16 and bf16 are computed in f32 and rounded.
- A rational function, 11 coefficients and one division, would give erf in 17 operations, but with an error of about
  6 ULP after the same tuning: so much do its roundings contribute. One of tanh (15 operations) came to 4 ULP."""

ELEMENTS = 32_768
TIMED = ("Exp", "Sigmoid", "Tanh", "Erf", "Softmax", "Log", "Sin", "Cos", "Pow")
ROWS = 32  # of the softmax

RANGE: dict[UnaryOp, tuple[float, float]] = {
    UnaryOp.EXP: (-104.0, 89.0),
    UnaryOp.EXP_NONPOSITIVE: (-104.0, 0.0),
    UnaryOp.SIGMOID: (-104.0, 20.0),
    UnaryOp.TANH: (-9.1, 9.1),
    UnaryOp.ERF: (-4.0, 4.0),
    UnaryOp.GELU: (-3.0, 4.0),
    UnaryOp.LOG: (0.0, 4.0),
    UnaryOp.SIN: (-30.0, 30.0),
    UnaryOp.COS: (-30.0, 30.0),
    UnaryOp.RSQRT: (0.5, 4.0),
}
LEAST = {UnaryOp.GELU: -3.0}  # below, few of the digits are there; NOTES say how many
MOST = {UnaryOp.EXP_NONPOSITIVE: 0.0}


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)], x.dtype)


def _gelu(x: Array) -> Array:
    tail = np.array([math.erfc(v * math.sqrt(0.5)) for v in np.abs(x).astype(np.float64)], x.dtype)
    return np.maximum(x, 0) - np.where(tail == 0, 0, np.abs(x) * tail / 2)


REFERENCE: dict[UnaryOp, Reference] = {
    UnaryOp.EXP: np.exp,
    UnaryOp.EXP_NONPOSITIVE: np.exp,
    UnaryOp.SIGMOID: _sigmoid,
    UnaryOp.TANH: np.tanh,
    UnaryOp.ERF: _erf,
    UnaryOp.GELU: _gelu,
    UnaryOp.LOG: np.log,
    UnaryOp.SIN: np.sin,
    UnaryOp.COS: np.cos,
    UnaryOp.RSQRT: _rsqrt,
}


def spread(count: int, dtype: DType) -> Array:
    """Floats of every exponent and both signs, evenly spread over their bits."""
    step = (1 << dtype.bits) // count | 1
    values = (np.arange(count, dtype=np.uint64) * np.uint64(step)).astype(f"u{dtype.bytes}").view(dtype.numpy)
    return values[~np.isnan(values)]


def largest(got: Array, exact: Array, dtype: DType) -> tuple[float, int]:
    """The largest error in ULP, and where."""
    digits, smallest = {DType.F32: (24, -149), DType.F64: (53, -1074)}[dtype]
    unit = np.ldexp(np.ones_like(exact), np.maximum(np.frexp(exact)[1] - digits, smallest))
    error = np.abs(got.astype(exact.dtype) - exact) / unit
    same = (got == exact.astype(dtype.numpy)) | (np.isnan(got) & np.isnan(exact))
    comparable = np.isfinite(got) & np.isfinite(exact)
    error = np.where(comparable, error, np.where(same, 0, np.inf)).astype(np.float64)
    at = int(np.argmax(error))
    return float(error[at]), at


def value(e: Expr, arrays: dict[Var, Array]) -> Array:
    def no_load(node: Load, indices: tuple[Any, ...]) -> Any:
        raise KeyError(node)

    return np.asarray(evaluate(e, arrays, no_load))


def errors(e: Expr, arrays: dict[Var, Array], exact: Array) -> list[str]:
    """With and without FMA."""
    out: list[str] = []
    for variant in (e, transform(e, split_expr)):
        error, at = largest(value(variant, arrays), exact, e.dtype)
        where = ", ".join(f"{float(a[at]):.6g}" for a in arrays.values())
        out.append(f"{error:.2f} ({where})")
    return out


def operations(e: Expr) -> list[str]:
    """Multiply-adds, divisions and roots, all others; f32 or integer, and f64."""
    count: Counter[str] = Counter()
    for n in walk(e):
        match n:
            case Const() | Var() | Bitcast():
                continue
            case Fma() | Binary(op=BinaryOp.MUL):
                kind = "multiply"
            case Binary(op=BinaryOp.DIV) | Unary(op=UnaryOp.SQRT):
                kind = "divide"
            case Binary() | Unary() | Select() | Cast():
                kind = "other"
            case _:
                raise TypeError(n)
        wide = any(c.dtype.bits == 64 for c in (n, *n.children()))
        count[kind + " wide" if wide else kind] += 1
    cells = [(count[k], count[k + " wide"]) for k in ("multiply", "divide", "other")]
    total = sum(a + 2 * b for a, b in cells)
    return [*(f"{a} + {b} f64" if b else str(a) for a, b in cells), str(total)]


def unary_row(op: UnaryOp, dtype: DType, count: int) -> list[str]:
    x = Var("x", dtype)
    e = expand_expr(Unary(op, x))
    assert e is not None
    is_limited = dtype is DType.F64 and op in (UnaryOp.SIN, UnaryOp.COS)
    every = np.linspace(-1.6e6, 1.6e6, count) if is_limited else spread(count, dtype)
    every = every[(every >= LEAST.get(op, -np.inf)) & (every <= MOST.get(op, np.inf))]
    points = np.concatenate([every, np.linspace(*RANGE[op], count)]).astype(dtype.numpy)
    wide = points.astype(np.float64 if dtype is DType.F32 else np.longdouble)
    return [op.value, *errors(e, {x: points}, REFERENCE[op](wide)), *operations(e)]


def pow_row(dtype: DType, count: int) -> list[str]:
    """Bases of all sizes and bases around 1, with exponents that use the whole range of results."""
    x, y = Var("x", dtype), Var("y", dtype)
    e = expand_expr(Binary(BinaryOp.POW, x, y))
    assert e is not None
    rng = np.random.default_rng(0)
    top = 88 if dtype is DType.F32 else 700
    reach = 150 if dtype is DType.F32 else 100
    bases = np.concatenate([np.exp(rng.uniform(-top, top, count)), rng.uniform(0.5, 2.0, count)]).astype(
        dtype.numpy
    )
    exponents = (rng.uniform(-reach, reach, 2 * count) / np.log2(bases.astype(np.float64))).astype(
        dtype.numpy
    )
    wide = np.float64 if dtype is DType.F32 else np.longdouble
    exact = np.power(bases.astype(wide), exponents.astype(wide))
    return ["pow", *errors(e, {x: bases, y: exponents}, exact), *operations(e)]


def time_row(op_type: str, rounds: int, seconds: float) -> list[str]:
    """One ONNX node on positive numbers (of which all functions are defined)."""
    net = Net(0)
    net.op(op_type, "x", *(["y"] if op_type == "Pow" else []))
    shape = (ROWS, ELEMENTS // ROWS) if op_type == "Softmax" else (ELEMENTS,)
    inputs = {"x": shape, "y": shape} if op_type == "Pow" else {"x": shape}
    feeds = {n: np.random.default_rng(0).uniform(0.1, 3.0, shape).astype(np.float32) for n in inputs}
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        path = Path(folder) / "function.onnx"
        path.write_bytes(net.model(op_type, dict(inputs), {"z": shape}).SerializeToString())
        session = compile_model(path).session(1)
        peer = BoundOnnxRuntime(str(path), 1)
        engines = {"ours": session.bind(feeds).run, "ort": peer.bind(feeds)}
        measured = interleave(engines, rounds=rounds, seconds=seconds)
    ratio = speedup(measured["ours"], measured["ort"])
    return [op_type, f"{measured['ours'].median / ELEMENTS * 1e9:.2f}", str(ratio)]


@click.command()
@click.option("--count", default=1_000_000, show_default=True, help="Points of each kind, f32.")
@click.option("--count64", default=20_000, show_default=True, help="Points of each kind, f64.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.05, show_default=True, help="Of each turn.")
def main(count: int, count64: int, rounds: int, seconds: float) -> None:
    """Measure errors and speed of the elementary functions; writes docs/results/vector-math.md."""
    parts: list[str] = []
    columns = ("function", "ULP", "ULP without FMA", "multiply(-add)", "divide, root", "other", "operations")
    with np.errstate(all="ignore"):
        for dtype, n in ((DType.F32, count), (DType.F64, count64)):
            rows = [unary_row(op, dtype, n) for op in REFERENCE]
            rows.append(pow_row(dtype, n // 4))
            parts += [f"## {dtype}", table(columns, rows)]
    rows = [time_row(op_type, rounds, seconds) for op_type in TIMED]
    parts += [
        "## Time",
        table(("operator", "ns an element", "against ONNX Runtime"), rows),
        "## Notes",
        NOTES,
    ]
    click.echo("\n\n".join(parts))
    method = METHOD.format(count=count, count64=count64, elements=ELEMENTS, rounds=rounds)
    click.echo(f"\nwritten to {write('vector-math', 'Elementary functions', SHOWS, method, *parts)}")


if __name__ == "__main__":
    main()
