"""What the runtime asks the machine: how many threads to use, and which instructions exist.

The functions take the root of the file system so that tests can describe other machines.
"""

import os
from pathlib import Path

from tilewright.support.artifact import Manifest
from tilewright.support.errors import Hint, UserError
from tilewright.support.processor import cpu_features, read_or_empty
from tilewright.support.tile_permission import without_refused

_ROOT = Path("/")


def default_threads(root: Path = _ROOT) -> int:
    """`OMP_NUM_THREADS`, which those who share a machine among processes set, up to the processors of the affinity
    mask; otherwise its physical cores, but no more than the control groups' quota lets run at once.
    """
    cpus = os.sched_getaffinity(0)
    setting = (
        os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    )  # a list has a number for each level of nesting
    if setting.isdecimal() and int(setting) > 0:
        return min(int(setting), len(cpus))
    cores = {_siblings(root, cpu) for cpu in cpus}
    quota = _quota(root)
    return max(1, len(cores) if quota is None else min(len(cores), int(quota + 0.5)))


def check_threads(threads: int) -> int:
    limit = 1024
    if not 1 <= threads <= limit:
        raise UserError(
            f"threads = {threads} is not between 1 and {limit}",
            hint="leave it out to use one thread for each core",
        )
    return threads


def runs_here(triple: str, features: frozenset[str]) -> bool:
    """Can this machine run code for such a processor?"""
    is_ours = triple.split("-", 1)[0] == os.uname().machine
    return is_ours and features <= cpu_features() and without_refused(features) == features


def check_machine(manifest: Manifest) -> None:
    """Refuse a program for another kind of processor than this one."""
    arch = manifest.triple.split("-", 1)[0]
    if arch != os.uname().machine:
        raise UserError(
            f"the program was compiled for {arch}; this machine is {os.uname().machine}",
            hint=Hint(
                "compile it for this machine", command="compile it with `tilewright compile` on this machine"
            ),
        )
    missing = sorted(set(manifest.features) - cpu_features())
    if missing:
        raise UserError(
            f"the program needs processor features that this machine lacks: {', '.join(missing)}",
            hint=Hint(
                'compile it on this machine, or with target="x86-64"',
                command="compile it on this machine, or with --target x86-64",
            ),
        )
    refused = sorted(frozenset(manifest.features) - without_refused(manifest.features))
    if refused:
        raise UserError(
            f"the program needs {', '.join(refused)}, and the kernel does not let this process use such registers",
            hint=Hint(
                "compile it in this process, which makes a program without them",
                command="compile it on this machine, where `tilewright compile` makes a program without them",
            ),
        )


def _siblings(root: Path, cpu: int) -> str:
    """What hardware threads of one core have in common; the cpu itself where the kernel does not tell."""
    return read_or_empty(
        root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    ).strip() or str(cpu)


def _quota(root: Path) -> float | None:
    """The smallest quota, in cores, of our control groups and their parents (versions 1 and 2)."""
    quotas: list[float] = []
    for line in read_or_empty(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            mounts = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
        elif "cpu" in controllers.split(","):
            mounts = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for mount in mounts:
            for depth in range(len(parts) + 1):
                folder = root.joinpath(mount, *parts[:depth])
                if controllers == "":
                    words = read_or_empty(folder / "cpu.max").split()
                else:
                    words = [read_or_empty(folder / f"cpu.cfs_{n}_us").strip() for n in ("quota", "period")]
                if len(words) == 2 and all(w.isdigit() for w in words) and int(words[1]) > 0:
                    quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)
