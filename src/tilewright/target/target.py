"""What programs are compiled for, as data: instructions, registers, and the figures of the machine.

A Target is a value: two machines with the same features and figures are the same target. Nothing here asks the machine
we are on except `native`.
"""

import os
from dataclasses import dataclass, replace

from tilewright.support.errors import UserError
from tilewright.support.processor import cache_kib, cpu_features, cpu_model
from tilewright.support.tile_permission import TILE_FEATURES, without_refused
from tilewright.target.figures import calibrated
from tilewright.target.machine import Machine, shipped_machine, zen3

# Features that our code generator makes use of; the ISA floor of an artifact is the subset it was built with.
X86_V3 = frozenset({"avx2", "fma", "avx", "sse4.2", "popcnt", "bmi", "bmi2", "f16c"})
X86_V4 = X86_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# That only some of those processors have, each with what comes with it. What AVX-VNNI has, AVX-512 VNNI has for wider
# vectors, too.
_BESIDE_V4 = (frozenset({"avx512vnni"}), TILE_FEATURES)
_BESIDE_V3 = (frozenset({"avxvnni"}), frozenset({"avxvnni", "avxvnniint8"}))


# SVE with vectors of 32 bytes. The length is no feature of LLVM's: it is told so in other words (`codegen/objects.py`).
SVE_256 = "sve-256"
SVE_256_FEATURES = frozenset({"sve", SVE_256})

HOST = "host"
_UNUSED = {
    "avx512fp16": "AVX512_FP16: arithmetic on f16",
}
_L3_KIB = 16384  # KiB of the third-level cache where the kernel does not tell; given: that of SHIPPED


@dataclass(frozen=True, slots=True)
class Target:
    """`features` are LLVM's names."""

    triple: str
    features: frozenset[str]
    vector_bytes: int  # of the widest register
    vector_registers: int
    machine: Machine  # what costs are computed with
    cpu: str = "generic"  # whose scheduling model LLVM uses; one that begins with HOST is that of the host

    @property
    def has_fma(self) -> bool:
        return bool(self.features & {"fma", "neon"})

    @property
    def has_rounding(self) -> bool:
        """Are floor, ceil, round and trunc instructions?"""
        return bool(self.features & {"sse4.1", "sse4.2", "avx", "avx2", "neon"})

    @property
    def has_f16(self) -> bool:
        """Are casts between f16 and f32 instructions?"""
        return bool(self.features & {"f16c", "neon"})

    def lanes(self, bytes_per_element: int) -> int:
        return self.vector_bytes // bytes_per_element

    def for_threads(self, threads: int) -> "Target":
        """The same, where schedules are ranked for this number of threads."""
        return replace(self, machine=self.machine.for_threads(threads))


def x86_64(
    features: frozenset[str] = X86_V3, *, cpu: str = "generic", l1: int = 32, l2: int = 512, l3: int = 16384
) -> Target:
    """Cache sizes in KiB."""
    return x86_64_with(zen3(l1, l2, l3), features, cpu)


def x86_64_with(machine: Machine, features: frozenset[str], cpu: str) -> Target:
    vector_bytes, registers = (64, 32) if features >= X86_V4 else (32, 16) if "avx2" in features else (16, 16)
    return Target("x86_64-unknown-linux-gnu", features, vector_bytes, registers, machine, cpu)


def aarch64(features: frozenset[str], *, l1: int = 64, l2: int = 1024, l3: int = 32768) -> Target:
    """Cache sizes in KiB."""
    vector_bytes = 32 if SVE_256 in features else 16
    return Target("aarch64-unknown-linux-gnu", features | {"neon"}, vector_bytes, 32, zen3(l1, l2, l3))


BASELINE = x86_64(frozenset())  # any x86-64
AVX2 = x86_64(X86_V3, cpu="znver3")
AVX_VNNI = x86_64(X86_V3 | {"avxvnni"}, cpu="alderlake")  # with dot products of bytes
AVX_VNNI_INT8 = x86_64(AVX_VNNI.features | {"avxvnniint8"}, cpu="alderlake")  # of any signs
AVX512 = x86_64(
    X86_V4, cpu="sapphirerapids", l1=48, l2=2048, l3=32768
)  # KiB; given: as servers have had them
AVX512_VNNI = x86_64(
    X86_V4 | {"avx512vnni"}, cpu="sapphirerapids", l1=48, l2=2048, l3=32768
)  # KiB; given: as above, with dot products of bytes
AMX = x86_64(
    AVX512_VNNI.features | TILE_FEATURES, cpu="sapphirerapids", l1=48, l2=2048, l3=32768
)  # KiB; given: as above, with tiles of matrices
AARCH64 = aarch64(frozenset({"dotprod", "i8mm", "bf16"}))  # as servers and phones have it since about 2021
AARCH64_SVE_256 = aarch64(AARCH64.features | SVE_256_FEATURES)  # as Neoverse V1 has it


def unused_features() -> tuple[str, ...]:
    """What the machine we are on could do that programs do not make use of yet."""
    here = cpu_features()
    return tuple(text for feature, text in _UNUSED.items() if feature in here)


def native() -> Target:
    """The machine we are on. UserError if our code does not run there."""
    here = os.uname()
    if (here.sysname, here.machine) != ("Linux", "x86_64"):
        raise UserError(
            f"programs are for Linux on x86-64; this machine is {here.sysname} on {here.machine}",
            hint="run on a machine that is, or on an emulated one",
        )
    has = cpu_features()
    v4, v3 = (
        frozenset[str]().union(*(some for some in beside if has >= some))
        for beside in (_BESIDE_V4, _BESIDE_V3)
    )
    levels = (X86_V4 | without_refused(v4), X86_V3 | v3)
    features = next((level for level in levels if has >= level), frozenset[str]())
    model, caches = cpu_model(), cache_kib()
    l3 = caches.get(3, max(caches.get(2, 0), _L3_KIB))
    shipped = shipped_machine(model, features, caches.get(1, 32), caches.get(2, 512), l3)
    return x86_64_with(calibrated(shipped, model), features, f"{HOST} {model}" if features else "generic")
