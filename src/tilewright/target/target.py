"""What the compiler knows of a machine, as data.

A Target is a value: two machines with the same features and caches are the same target. Nothing here runs code except
`native`, which asks the machine we are on.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from tilewright.support.errors import UserError

# Features that our code generator makes use of; the ISA floor of an artifact is the subset it was built with.
X86_V3 = frozenset({"avx2", "fma", "avx", "sse4.2", "popcnt", "bmi", "bmi2", "f16c"})


@dataclass(frozen=True, slots=True)
class Target:
    """`features` are LLVM's names. Cache sizes are per core, but L3, which is shared."""

    triple: str
    features: frozenset[str]
    vector_bytes: int  # of the widest register
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cpu: str = "generic"  # LLVM's scheduling model; it never adds features

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


def x86_64(
    features: frozenset[str] = X86_V3, *, cpu: str = "generic", l1: int = 32, l2: int = 512, l3: int = 16384
) -> Target:
    """Cache sizes in KiB."""
    wide = "avx2" in features
    return Target(
        "x86_64-unknown-linux-gnu", features, 32 if wide else 16, 16, l1 << 10, l2 << 10, l3 << 10, cpu
    )


def aarch64(features: frozenset[str], *, l1: int = 64, l2: int = 1024, l3: int = 32768) -> Target:
    """Cache sizes in KiB."""
    return Target("aarch64-unknown-linux-gnu", features | {"neon"}, 16, 32, l1 << 10, l2 << 10, l3 << 10)


BASELINE = x86_64(frozenset())  # any x86-64
AVX2 = x86_64(X86_V3, cpu="znver3")
AARCH64 = aarch64(frozenset({"dotprod", "i8mm"}))  # as servers and phones have it since about 2021


_SPELLING = {"sse4_1": "sse4.1", "sse4_2": "sse4.2", "bmi1": "bmi"}  # the kernel's names to LLVM's


def cpu_flags() -> frozenset[str]:
    """Features of this machine in LLVM's spelling, from the kernel."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(_SPELLING.get(n, n) for n in line.split(":", 1)[1].split())
    return frozenset()


def _cache_kib(index: int, default: int) -> int:
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text().strip()
    except OSError:
        return default
    return int(text.rstrip("K")) if text.endswith("K") else default


def native() -> Target:
    """The machine we are on. UserError if our code does not run there."""
    here = os.uname()
    if (here.sysname, here.machine) != ("Linux", "x86_64"):
        raise UserError(
            f"programs are for Linux on x86-64; this machine is {here.sysname} on {here.machine}",
            hint="run on a machine that is, or on an emulated one",
        )
    features = X86_V3 if cpu_flags() >= X86_V3 else frozenset[str]()
    return x86_64(
        features,
        cpu="znver3" if features else "generic",
        l1=_cache_kib(0, 32),
        l2=_cache_kib(2, 512),
        l3=_cache_kib(3, 16384),
    )
