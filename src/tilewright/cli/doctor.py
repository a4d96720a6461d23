"""`tilewright doctor`: does everything that the compiler needs work here?"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tilewright.api import load
from tilewright.cli.calibrate import calibrate as measure_figures
from tilewright.cli.machine import Host, machine, versions
from tilewright.cli.output import note, print_json, print_table
from tilewright.cli.peak import fma_loop, read_loop
from tilewright.cli.status import ExitStatus
from tilewright.runtime.cache import default_cache
from tilewright.support.errors import UserError
from tilewright.support.processor import cpu_model
from tilewright.target.figures import figures_path, save_figures
from tilewright.target.machine import Machine
from tilewright.target.target import Target, native, unused_features

_BUSY = 0.5  # load average from which on others disturb what is measured


@dataclass(frozen=True, slots=True)
class Finding:
    """`ok` is None for a fact that cannot be wrong."""

    name: str
    detail: str
    ok: bool | None = None


def doctor(peak: bool, calibrate: bool, as_json: bool) -> int:
    here = machine()
    measured = _calibrated(here) if calibrate else []
    found = [*_facts(here), *_checks(here)]
    if peak and _is_supported(here):
        found += _peaks(native())
    found += measured
    if as_json:
        print_json(
            {
                "ok": all(f.ok is not False for f in found),
                "versions": versions(),
                "findings": [{"name": f.name, "detail": f.detail, "ok": f.ok} for f in found],
            }
        )
    else:
        marks = {None: "", True: "ok", False: "FAILED"}
        rows = [(name, text or "not installed", "") for name, text in versions().items()]
        print_table(("", "", ""), rows + [(f.name, f.detail, marks[f.ok]) for f in found])
    return ExitStatus.OK if all(f.ok is not False for f in found) else ExitStatus.USER_ERROR


def _target_facts(target: Target) -> list[Finding]:
    m = target.machine
    caches = " / ".join(f"{size >> 10} KiB" for size in (m.l1_bytes, m.l2_bytes, m.l3_bytes))
    return [
        Finding("caches", f"{caches} (L1, L2, L3)"),
        Finding("vectors", f"{target.vector_bytes} bytes, {target.vector_registers} registers"),
        Finding("features", ", ".join(sorted(target.features)) or "none beyond the baseline"),
        *(Finding("not used yet", name) for name in unused_features()),
        Finding("figures", f"{target.machine.name}: {_figures(target.machine)}"),
    ]


def _figures(m: Machine) -> str:
    """Those that differ most between machines."""
    rates = {"L2": (m.l2_rate,), "L3": m.l3_rates, "memory": m.memory_rates}
    reads = "; ".join(
        f"{level} {' / '.join(f'{rate / 1e9:.4g}' for rate in found)} GB/s" for level, found in rates.items()
    )
    return (
        f"{m.hertz / 1e9:.3g} GHz, {m.fma_per_cycle:g} multiply-adds and {m.loads_per_cycle:g} loads a cycle,"
        f" {m.fma_latency:g} cycles of latency; {reads}; {1e6 * m.meeting_seconds:.2g} µs to meet"
    )


def _calibrated(here: Host) -> list[Finding]:
    """Measure the figures of this host, and keep them."""
    if not _is_supported(here):
        raise UserError(f"{here.system} is not supported", hint="calibrate where programs run")
    if figures_path(cpu_model()) is None:
        raise UserError(
            "there is no place to keep figures",
            hint="TILEWRIGHT_FIGURES is off, or there is no home; TILEWRIGHT_FIGURES=FILE names a place",
        )
    busy = os.getloadavg()[0]
    if busy > _BUSY:
        note(f"the load average is {busy:.1f}: figures are best measured while nothing else runs")
    start = time.perf_counter()
    figures = measure_figures(native(), here.threads, lambda what: note(f"measuring {what}"))
    path = save_figures(figures, cpu_model(), time.strftime("%Y-%m-%d"))
    return [Finding("calibrated", f"in {time.perf_counter() - start:.1f} s, kept in {path}", True)]


def _facts(here: Host) -> list[Finding]:
    return [
        Finding("machine", here.summary()),
        *(_target_facts(native()) if _is_supported(here) else ()),
        Finding(
            "cores", f"{len(here.affinity)} of {here.cores} may be used: {', '.join(map(str, here.affinity))}"
        ),
        Finding("threads", f"{here.threads} by default"),
    ]


def _is_supported(here: Host) -> bool:
    return here.system == "Linux x86_64"


def _checks(here: Host) -> list[Finding]:
    supported = _is_supported(here)
    return [
        Finding("platform", here.system if supported else f"{here.system} is not supported", supported),
        _check("cache", _cache_keeps),
        _check("compiler", _compile_and_run),
    ]


def _check(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, check(), True)
    except Exception as e:  # whatever it is, it is the finding
        return Finding(name, f"{type(e).__name__}: {e}", False)


def _cache_keeps() -> str:
    """A compiler without its cache works, but slowly, and never says why."""
    cache = default_cache()
    if not cache.is_on:
        return "off"
    key, data = hashlib.sha256(b"doctor").hexdigest(), b"written by tilewright doctor"
    cache.put(key, data)
    if cache.get(key) != data:
        raise OSError("what is written cannot be read back; move the cache with TILEWRIGHT_CACHE")
    return "entries are kept"


def _compile_and_run() -> str:
    """A model of one node, through every stage, without a cache."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [33])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [33])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doctor", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    value = np.arange(33, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "doctor.onnx"
        path.write_bytes(model.SerializeToString())
        result = load(path, cache=False).run({"x": value})["y"]
    if not np.array_equal(result, value + value):
        raise ValueError("a compiled sum is wrong")
    return "a model was compiled, loaded and run"


def _peaks(target: Target) -> list[Finding]:
    arithmetic = fma_loop(target)
    large = 4 * target.machine.l3_bytes
    memory = read_loop(target, large)
    return [
        Finding(
            "arithmetic", f"{arithmetic.flops / arithmetic.seconds(20) / 1e9:.1f} GFLOP/s (float32, one core)"
        ),
        Finding(
            "memory", f"{memory.nbytes / memory.seconds() / 1e9:.1f} GB/s (one core reads {large >> 20} MiB)"
        ),
    ]
