"""What the kernel says of the processor: its features, its model, and its caches.

The functions take the root of the file system so that tests can describe other machines.
"""

from functools import lru_cache
from pathlib import Path

_ROOT = Path("/")
_IDENTITY = ("vendor_id", "cpu family", "model", "model name", "stepping")
_MOST_CACHES = 8

# the kernel's names of processor features to LLVM's, where they differ
_SPELLING = {
    "abm": "lzcnt",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "amx_tile": "amx-tile",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "rdrand": "rdrnd",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}


@lru_cache(maxsize=1)  # the file is long where cores are many
def cpu_features(root: Path = _ROOT) -> frozenset[str]:
    """Features of this processor in LLVM's spelling. Cores differ on some machines: those that all have."""
    common: frozenset[str] | None = None
    for line in read_or_empty(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            names = frozenset(_SPELLING.get(n, n) for n in value.split())
            common = names if common is None else common & names
    return common or frozenset()


@lru_cache(maxsize=1)
def cpu_model(root: Path = _ROOT) -> str:
    """The kind of processor: vendor, family, model, name and stepping of the first core; "unknown" if nobody says."""
    found: dict[str, str] = {}
    for line in read_or_empty(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in _IDENTITY:
            found.setdefault(key.strip(), value.strip())
    return " ".join(found[k] for k in _IDENTITY if k in found) or "unknown"


def cache_kib(root: Path = _ROOT) -> dict[int, int]:
    """The KiB of the caches for data of the first core, by level; those that the kernel tells of."""
    found: dict[int, int] = {}
    for index in range(_MOST_CACHES):
        folder = root / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        level, kind, size = (read_or_empty(folder / n).strip() for n in ("level", "type", "size"))
        if level.isdecimal() and kind in ("Data", "Unified") and size.endswith("K") and size[:-1].isdecimal():
            found[int(level)] = int(size[:-1])
    return found


def read_or_empty(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
