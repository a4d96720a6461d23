"""`inspect --traffic`: what each kernel must move, what its schedule moves at each level, and what bounds it.

The bytes are those of the model of `cost/traffic.py`, the seconds those that the rates of the machine make of them: an
estimate, next to which stands the time of a run if the program was profiled too.
"""

from typing import Any

from tilewright.cost.caches import l3_room
from tilewright.cost.traffic import LEVELS, Traffic, traffic_of
from tilewright.driver.kernels import NativeKernel
from tilewright.ir.expr import Buffer
from tilewright.profiling.call_times import kernel_calls
from tilewright.stages import Stages
from tilewright.support.artifact import Artifact, Place
from tilewright.target.machine import Machine
from tilewright.target.target import Target


def traffic_view(found: Stages, threads: int) -> dict[str, Any]:
    """What is known without running it, the kernel that takes longest first."""
    target = found.target.for_threads(threads)
    kernels = [
        _kernel(k, found.calls[k.name], traffic_of_kernel(k, found.artifact, target), target)
        for k in found.kernels
        if found.calls.get(k.name)  # others ran when constants were folded
    ]
    kernels.sort(key=lambda k: -k["estimated_seconds"])
    return {"machine": target.machine.name, "threads": threads, "levels": list(LEVELS), "kernels": kernels}


def traffic_of_kernel(kernel: NativeKernel, artifact: Artifact, target: Target) -> Traffic:
    """With weights in memory, if no cache holds those of all kernels."""
    call = next((c for c in kernel_calls(artifact.program) if c.kernel == kernel.name), None)
    cold: tuple[Buffer, ...] = ()
    if call is not None and sum(c.nbytes for c in artifact.constants) > l3_room(target.machine):
        slots = zip(kernel.func.params, call.args, strict=True)
        cold = tuple(p for p, slot in slots if slot.place is Place.CONSTANT)
    return traffic_of(kernel.func, target.machine, target.vector_bytes, cold)


def _kernel(kernel: NativeKernel, calls: int, traffic: Traffic, target: Target) -> dict[str, Any]:
    """Of all its calls in a run."""
    machine = _sharing(kernel, target.machine)
    seconds = {k: calls * s for k, s in traffic.seconds(machine, target.vector_bytes).items()}
    bound_by = max(seconds, key=lambda k: seconds[k])
    return {
        "name": kernel.name,
        "calls": calls,
        "must_move_bytes": calls * traffic.must_move,
        "moved_bytes": {level: round(calls * b) for level, b in zip(LEVELS, traffic.moved, strict=True)},
        "level_seconds": seconds,
        "estimated_seconds": seconds[bound_by],
        "measured_seconds": None,
        "bound_by": bound_by,
    }


def _sharing(kernel: NativeKernel, m: Machine) -> Machine:
    """The machine with as many threads as find a part."""
    return m.for_threads(max(1, min(m.threads, kernel.parts)))
