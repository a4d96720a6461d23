"""The matrix of element types and targets: `python -m tilewright.target.dtype_matrix > docs/dtypes.md`.

Everything in it is asked of the types and the targets themselves; a test keeps the page current.
"""

from tilewright.ir.dtype import DType
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.intrinsics import intrinsics_of
from tilewright.target.matrix_units import matrix_unit
from tilewright.target.names import TARGETS
from tilewright.target.target import AARCH64, AARCH64_SVE_256, Target

_HALVES = (DType.F16, DType.BF16)

_HEAD = """# Element types and targets

Made by `python -m tilewright.target.dtype_matrix > docs/dtypes.md` from the types and targets themselves.

Every type below is compiled to native code on every target. A cell says how: how many elements a vector register
holds; `in f32` where values are stored in 16 bits and computed in f32 (each operation rounds once to the stored type);
`casts in software` where the conversion to f32 takes several instructions; `fma` where a multiply-add is one
instruction; and the tensor intrinsics that use the type, where one that ends in `.tile` is there in any shape.

"""

_FOOT = """
`native` is the highest of the levels that the machine has (`tilewright doctor` says which); a program compiled for a
level runs on every processor that has its features, and is refused with the missing ones elsewhere. Arm is compiled
for and tested under an emulator only, and has no name on the command line yet.

## Types of ONNX

| ONNX | here | |
|---|---|---|
| `float`, `double`, `float16`, `bfloat16` | `f32`, `f64`, `f16`, `bf16` | sums of 16-bit types are kept in f32 |
| `int8` … `int64`, `uint8` … `uint64`, `bool` | `i8` … `i64`, `u8` … `u64`, `bool` | arithmetic wraps |
| `float8…`, `int4`, `uint4`, `float4e2m1`, `int2`, `uint2` | none | the host runs such nodes, with ml_dtypes |
| `string`, `complex64`, `complex128`, sequences, optionals, maps | none | the host runs such nodes |

Nodes that the host runs are between native programs ([which, and what they cost](dynamic.md#nodes-of-the-host)).

Quantized models (QDQ, `QLinear…`, `MatMulInteger`, dynamic quantization) give the results that ONNX defines; they sum
up bytes, by VNNI and AMX where the processor has these ([low precision](low-precision.md)).
"""


def dtype_matrix() -> str:
    """The page."""
    targets = {name: make() for name, make in TARGETS.items() if name != "native"} | {
        "AArch64 (NEON, i8mm)": AARCH64,
        "AArch64 (SVE, i8mm)": AARCH64_SVE_256,
    }
    lines = [
        f"| type | bytes | {' | '.join(f'`{n}`' if n in TARGETS else n for n in targets)} |",
        f"|---|---:|{'---|' * len(targets)}",
        f"| *vector register* | | {' | '.join(_registers(t) for t in targets.values())} |",
        *(f"| `{d}` | {d.bytes} | {' | '.join(_cell(d, t) for t in targets.values())} |" for d in DType),
    ]
    return _HEAD + "\n".join(lines) + "\n" + _FOOT


def _registers(target: Target) -> str:
    return f"{8 * target.vector_bytes} bits × {target.vector_registers}"


def _cell(dtype: DType, target: Target) -> str:
    said = [f"{target.lanes(dtype.bytes)} a vector"]
    if dtype in _HALVES:
        said = [f"{target.lanes(DType.F32.bytes)} a vector, in f32"]
        if not target.has_f16 or dtype is DType.BF16:
            said.append("casts in software")
    elif dtype.is_float and target.has_fma:
        said.append("fma")
    if names := _intrinsics(dtype, target):
        said.append(names)
    return "; ".join(said)


def _intrinsics(dtype: DType, target: Target) -> str:
    """Those that read the type, of register tiles how many."""
    found = [i for i in intrinsics_of(target) if dtype in _reads(i)]
    tiles = [i for i in found if ".tile_" in i.name]
    others = [f"`{i.name}`" for i in found if i not in tiles]
    if unit := matrix_unit(target):
        pairs = sorted((str(a), str(b)) for a, b in unit.types if dtype in (a, b))
        others += [f"`{unit.family}.{a}{b}.tile`" for a, b in pairs]
    return ", ".join([*([f"{len(tiles)} register tiles"] if tiles else []), *others])


def _reads(intrinsic: Intrinsic) -> set[DType]:
    return {p.dtype for p in intrinsic.meaning.params[1:]}


if __name__ == "__main__":
    print(dtype_matrix(), end="")
