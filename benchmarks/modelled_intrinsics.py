"""Kernels of few bits in models of processors, most of which are not at hand: docs/results/intrinsics-modelled.md.

python -m benchmarks.modelled_intrinsics
python -m benchmarks.modelled_intrinsics --no-save
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.modelled_loops import find_tool, model, product_loop
from benchmarks.results import table, write
from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import compile_assembly
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, cast
from tilewright.lowered import lowered
from tilewright.search.default import schedule_func
from tilewright.support.processor import cpu_features
from tilewright.target.target import (
    AARCH64,
    AARCH64_SVE_256,
    AMX,
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    AVX_VNNI_INT8,
    Target,
    aarch64,
)
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import Emit, walk_stmts

ROWS, COLUMNS, DEPTH = 192, 256, 512
TITLE = "Instructions for few bits, in models of processors"
METHOD = f"""Not a measurement: the inner loop of each kernel, as the search has chosen it and LLVM has compiled it, in
llvm-mca's model of a processor, with all data in the first-level cache. Products of bytes are {ROWS}×{DEPTH} by
{DEPTH}×{COLUMNS} with constant weights; those of 4 bits are `MatMulNBits` with blocks of 32, {DEPTH} by {COLUMNS}.

*cycles*: of an iteration of the loop; *of the ports*: the least cycles that the ports allow for all of its
instructions, over that; *of the products*: the same for those that multiply alone, so what is missing is loads and
what else is beside. Products of a cycle are multiplications of integers. Kernels are as they stand here: in a
network, bytes of signs that no instruction takes are moved to others first, so lines of 16 bits beside a product of
bytes are of no network, and where there is no instruction at all there is no line. Models are what LLVM's authors
know: that of AMX has latencies and no throughput, so its shares are unknown; that of Zen 4 has half of the products
of 64 bytes that vendors' tables have.

What was *run here* (its code, on another processor than that of the model) or *under qemu* is compared with the
interpreter to the bit by tests, intrinsics and whole models. What is *modelled only* is compiled, and its assembly is
checked, and nothing else: it needs a processor that was not there, and qemu has neither AMX nor AVX-VNNI-INT8. A line
of AMX whose intrinsic is one of vectors is code that runs on any processor with AVX-512 VNNI."""
_LEAST_SHARE = 0.05  # below it, a model does not know what its ports do


@dataclass(frozen=True, slots=True)
class Processor:
    name: str  # for people
    target: Target
    cpu: str  # of LLVM's model

    @property
    def is_here(self) -> bool:
        return self.target.features <= cpu_features()

    @property
    def run(self) -> str:
        if not self.target.triple.startswith("x86_64"):
            return "under qemu"
        return "run here" if self.is_here else "modelled only"


PROCESSORS = (
    Processor("AVX2 (Zen 4)", AVX2, "znver4"),
    Processor("AVX-VNNI (Alder Lake)", AVX_VNNI, "alderlake"),
    Processor("AVX-VNNI-INT8 (as Alder Lake)", AVX_VNNI_INT8, "alderlake"),
    Processor("AVX-512 VNNI (Zen 4)", AVX512_VNNI, "znver4"),
    Processor("AVX-512 VNNI (Sapphire Rapids)", AVX512_VNNI, "sapphirerapids"),
    Processor("AMX (Sapphire Rapids)", AMX, "sapphirerapids"),
    Processor("dotprod (Neoverse N1)", aarch64(frozenset({"dotprod"})), "neoverse-n1"),
    Processor("i8mm (Neoverse N2)", AARCH64, "neoverse-n2"),
    Processor("i8mm (Neoverse V1)", AARCH64, "neoverse-v1"),
    Processor("i8mm (Neoverse V2)", AARCH64, "neoverse-v2"),
    Processor("SVE of 32 bytes, i8mm (Neoverse V1)", AARCH64_SVE_256, "neoverse-v1"),
)


# --------------------------------------------------------------------------------------------------------- kernels


def product(left: DType) -> Func:
    b = FuncBuilder("product")
    x, y = b.param("A", (ROWS, DEPTH), left), b.param("B", (DEPTH, COLUMNS), DType.I8)

    def factors(i: Expr, j: Expr, k: Expr) -> tuple[Expr, Expr]:
        return cast(DType.I32, x[i, k]), cast(DType.I32, y[k, j])

    return b.finish(b.reduce("C", (ROWS, COLUMNS), (DEPTH,), factors, "sum"))


def four_bits(rows: int) -> ModelProto:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (COLUMNS, DEPTH // 32, 16), np.uint8)
    scales = rng.random((COLUMNS, DEPTH // 32)).astype(np.float32)
    given: dict[str, Any] = {"K": DEPTH, "N": COLUMNS, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **given)
    graph = helper.make_graph(
        [node],
        "four_bits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, COLUMNS])],
        [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales, "s")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _of_bytes(left: DType) -> Callable[[Target], Func]:
    return lambda target: schedule_func(product(left), target, frozenset({"B"})).func


def _of_four_bits(rows: int) -> Callable[[Target], Func]:
    def make(target: Target) -> Func:
        module = lowered(four_bits(rows), target=target)
        constants = frozenset(c.buffer.name for c in module.constants)
        made = [schedule_func(f, target, constants).func for f in module.funcs]
        return next(f for f in made if instructions(f))

    return make


KERNELS: Mapping[str, Callable[[Target], Func]] = {
    "bytes, u8·s8": _of_bytes(DType.U8),
    "bytes, s8·s8": _of_bytes(DType.I8),
    "4 bits, 8 rows": _of_four_bits(8),
    "4 bits, one row": _of_four_bits(1),
}


def instructions(func: Func) -> set[str]:
    """The intrinsics of integers that the schedule has, without their shapes."""
    emits = (s.intrinsic for s in walk_stmts(func.body) if isinstance(s, Emit))
    return {n for n in emits if ".f32." not in n and ".zero_" not in n and ".store_" not in n}


def assembly_of(func: Func, target: Target) -> str:
    """Of the kernel with the products."""
    phases, _ = lower_func(func, legalize(target))
    emitting = [p.func for p in phases if instructions(p.func)] or [phases[-1].func]
    return compile_assembly(kernel_ir(emitting[-1]), target)


def line(tool: str, kernel: str, processor: Processor) -> list[str] | None:
    """Of the table; None where no instruction takes such bytes."""
    func = KERNELS[kernel](processor.target)
    names = sorted(instructions(func), key=lambda n: (len(n), n))
    if not names:
        return None
    loop = product_loop(assembly_of(func, processor.target))
    found = model(tool, loop, processor.target, processor.cpu)
    return [
        processor.name,
        f"`{names[-1]}`",
        str(found.instructions),
        f"{found.cycles:.1f}",
        _share(found.of_ports),
        _share(found.of_products),
        f"{found.products / found.cycles:.1f}",
        processor.run,
    ]


def _share(value: float) -> str:
    return "unknown" if value < _LEAST_SHARE else f"{value:.2f}"


COLUMNS_OF_TABLE = (
    "processor",
    "intrinsic",
    "instructions",
    "cycles",
    "of the ports",
    "of the products",
    "products a cycle",
    "run",
)


@click.command()
@click.option("--save/--no-save", default=True, help="Write the page.")
def main(save: bool) -> None:
    """Model inner loops of few bits; writes docs/results/intrinsics-modelled.md."""
    tool, parts, best = find_tool(), list[str](), dict[str, float]()
    for kernel in KERNELS:
        rows = [row for p in PROCESSORS if (row := line(tool, kernel, p))]
        text = table(COLUMNS_OF_TABLE, rows)
        click.echo(f"{kernel}\n{text}\n")
        parts += [f"## {kernel[0].upper()}{kernel[1:]}", text]
        if kernel == "bytes, u8·s8":
            best = {row[0]: float(row[5]) for row in rows if row[5] != "unknown"}
    only = [p.name for p in PROCESSORS if p.run == "modelled only"]
    low, high = min(best.items(), key=lambda b: b[1]), max(best.items(), key=lambda b: b[1])
    shows = (
        f"In LLVM's models, inner loops of products of bytes keep the ports that multiply busy {low[1]:.2f} "
        f"({low[0]}) to {high[1]:.2f} ({high[0]}) of the time. {' and '.join(only)} could not be run here: their "
        "code is compiled and its assembly checked, no more. Arm was run under an emulator, which has no clock."
    )
    if save:
        click.echo(f"written to {write('intrinsics-modelled', TITLE, shows, METHOD, *parts)}")


if __name__ == "__main__":
    main()
