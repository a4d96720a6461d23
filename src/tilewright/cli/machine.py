"""Facts about the machine and the installation: what a figure must be read with, and what a bug report needs."""

import os
import platform
import resource
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tilewright.runtime.machine import default_threads
from tilewright.support.errors import UserError

PACKAGES = ("tilewright", "numpy", "ml_dtypes", "onnx", "llvmlite", "onnxruntime", "torch")


@dataclass(frozen=True, slots=True)
class Host:
    cpu: str
    cores: int  # online
    affinity: tuple[int, ...]  # the cores we may use
    threads: int  # what a session uses by default: one for each core, within the container's quota
    memory_mb: int
    system: str

    def summary(self) -> str:
        """One line for the head of a results table."""
        return f"{self.cpu}, {len(self.affinity)} cores, {self.memory_mb >> 10} GiB, {self.system}"


def machine() -> Host:
    """The one we are on."""
    return Host(
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        threads=default_threads(),
        memory_mb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        system=f"{platform.system()} {platform.machine()}",
    )


def versions() -> dict[str, str | None]:
    """None where an optional package is not installed."""
    llvm: str = import_module(
        "tilewright.codegen.objects"
    ).LLVM_VERSION  # a compiled program is timed without
    found: dict[str, str | None] = {"python": platform.python_version(), "llvm": llvm}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def check_cores(threads: int) -> None:
    """Refuse to measure with more threads than cores."""
    available = len(os.sched_getaffinity(0))
    if threads > available:
        raise UserError(
            f"{threads} threads on {available} usable core(s) would time how they share, not the model",
            hint=f"measure with at most {available}",
        )


def reset_peak_memory() -> None:
    """Start a new high-water mark; where the kernel does not let us, the old one stays."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def memory_mb() -> tuple[float, float]:
    """Resident memory now and at its peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return peak, peak
    found = dict(line.split(":", 1) for line in status.read_text().splitlines() if line.startswith("Vm"))
    now, peak = (int(found[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return now, peak


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
