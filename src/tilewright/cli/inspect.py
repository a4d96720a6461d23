"""`tilewright inspect`: what a model becomes, at every stage."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from tilewright.cli.feeds import make_feeds, read_sample
from tilewright.cli.flops import count_flops
from tilewright.cli.machine import check_cores, machine
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import megabytes, note, print_json, print_table, shape_text
from tilewright.cli.placement_view import show_placement
from tilewright.cli.profile import kernel_calls
from tilewright.cli.profile import profile as profile_program
from tilewright.cli.profile_table import show_profile
from tilewright.compiler import Stages, stages
from tilewright.driver.trace import ProgramTrace
from tilewright.graph.printer import print_graph
from tilewright.kernels import Kernel
from tilewright.ops.accuracy import EXACT, Accuracy
from tilewright.runtime.file import load as read_program
from tilewright.runtime.machine import default_threads
from tilewright.support.artifact import (
    Artifact,
    ExternalCall,
    TensorSpec,
)
from tilewright.support.errors import UserError
from tilewright.support.program import leaves
from tilewright.target.target import native
from tilewright.tir.func import Module
from tilewright.tir.printer import print_func, print_module
from tilewright.wish import Wish

T = TypeVar("T")
WHOLE: dict[str, Callable[[Stages], str]] = {"graph": lambda s: print_graph(s.graph)}
MODULES: dict[str, Callable[[Stages], Module]] = {"tir": lambda s: s.tir, "scheduled": lambda s: s.scheduled}
KERNELS: dict[str, Callable[[Stages, Kernel], str]] = {
    "lowered": lambda _, k: print_func(k.func),
    "llvm": lambda _, k: k.llvm,
    "asm": lambda s, k: s.asm(k.name),
}


def inspect(
    model: Path,
    ir: str | None,
    kernel: str | None,
    trace: bool,
    placement: bool,
    svg: Path | None,
    profile: bool,
    seconds: float,
    threads: int | None,
    files: dict[str, str],
    seed: int,
    shapes: dict[str, tuple[int, ...]],
    target: str,
    accuracy: Accuracy | None,
    check_indices: bool | None,
    plugins: tuple[str, ...],
    policy: str,
    strict: bool,
    calibration: tuple[str, ...],
    as_json: bool,
) -> None:
    compiled = partial(
        stages, model, shapes=shapes, target=target, accuracy=accuracy, check_indices=check_indices
    )
    if trace:
        if ir is not None or kernel is not None or profile or placement or plugins:
            raise click.UsageError(
                "--trace shows all decisions: it takes no --ir, --kernel, --profile, --plugin."
            )
        _show_trace(model, compiled, as_json)
        return
    if profile:
        if ir is not None or kernel is not None:
            raise click.UsageError("--profile shows all kernels: it takes no --ir and no --kernel.")
        _profile(model, compiled, files, seed, threads, seconds, as_json)
        return
    if plugins or placement or svg:
        if not plugins or not (placement or svg):
            raise click.UsageError("--plugin and --placement (or --svg) belong together.")
        wish = Wish.of(plugins, policy, strict, threads, map(read_sample, calibration))
        show_placement(compiled(wish=wish), svg, as_json)
        return
    if threads is not None or files:
        raise click.UsageError("--threads and --input are for --profile, which runs the model.")
    if ir is None:
        if kernel is not None:
            raise click.UsageError("--kernel needs --ir, to say what to show of it.")
        _print_summary(_summary(model, compiled), as_json)
        return
    if model.suffix == PROGRAM:
        raise UserError(
            "a compiled program holds machine code only", where=str(model), hint="inspect the .onnx file"
        )
    text = _text(compiled(), ir, kernel)
    if as_json:
        print_json({"model": str(model), "ir": ir, "kernel": kernel, "text": text})
    else:
        click.echo(text)


def _show_trace(model: Path, compiled: Callable[[], Stages], as_json: bool) -> None:
    is_program = model.suffix == PROGRAM
    text = read_program(model).manifest.options.get("trace", "") if is_program else str(compiled().trace)
    if as_json:
        sections = ProgramTrace.parse(text).sections
        print_json({"model": str(model), "trace": {n: [str(d) for d in s] for n, s in sections.items()}})
    else:
        click.echo(text, nl=False)


def _text(found: Stages, ir: str, kernel: str | None) -> str:
    if ir in WHOLE:
        if kernel is not None:
            raise click.UsageError(f"--ir {ir} has no kernels.")
        return WHOLE[ir](found)
    if ir in MODULES:
        module = MODULES[ir](found)
        if kernel is None:
            return print_module(module)
        return print_func(_pick({f.name: f for f in module.funcs}, kernel))
    kernels = found.kernels if kernel is None else (_pick({k.name: k for k in found.kernels}, kernel),)
    return "\n".join(KERNELS[ir](found, k) for k in kernels)


def _pick(named: dict[str, T], name: str) -> T:
    """By its name, or by a part of it that no other has: the number that it begins with, or its digest."""
    if name in named:
        return named[name]
    found = [n for n in named if name in n]
    if len(found) == 1:
        return named[found[0]]
    if found:
        raise UserError(
            f"several kernels have {name!r} in their names", hint=f"take one of {', '.join(found)}"
        )
    raise UserError(f"there is no kernel {name!r} at this stage", hint=f"there are: {', '.join(named)}")


# ------------------------------------------------------------------------------------------------------------ summary


def _summary(model: Path, compiled: Callable[[], Stages]) -> dict[str, Any]:
    """Arithmetic, and what was estimated or measured, is known only where the kernels are: not of a program."""
    if model.suffix == PROGRAM:
        return _describe(read_program(model), {})
    found = compiled()
    summary = _describe(found.artifact, {k.name: count_flops(k.func.body) for k in found.kernels})
    summary["host"] = [{"node": h.step.name, "op": h.step.node.op_type, "why": h.why} for h in found.hosts]
    summary["nodes_after_host"] = found.later
    summary["tuned_kernels"] = found.tuned
    summary["layouts"] = [str(c) for c in found.layouts]
    return summary


def _describe(artifact: Artifact, flops: dict[str, int]) -> dict[str, Any]:
    kernels: dict[str, dict[str, Any]] = {}
    for call in kernel_calls(artifact.program):
        fresh = {"name": call.kernel, "calls": 0, "parts": call.parts, "flops": flops.get(call.kernel)}
        kernels.setdefault(call.kernel, fresh)["calls"] += 1
    manifest = artifact.manifest
    return {
        "inputs": [_spec(s) for s in manifest.inputs],
        "outputs": [_spec(s) for s in manifest.outputs],
        "kernels": list(kernels.values()),
        "external": [s.key for s in leaves(artifact.program) if isinstance(s, ExternalCall)],
        "host": [],
        "nodes_after_host": 0,
        "flops": sum(k["calls"] * k["flops"] for k in kernels.values()) if flops else None,
        "arena_bytes": artifact.arena_bytes,
        "weights_bytes": sum(c.nbytes for c in artifact.constants),
        "code_bytes": sum(map(len, artifact.objects)),
        "triple": manifest.triple,
        "features": sorted(manifest.features),
        "tuned_kernels": 0,
        "accuracy": manifest.options.get("accuracy", EXACT),
        "checked_indices": [c.node for c in manifest.checks] if "check_indices" in manifest.options else None,
        "algorithms": _algorithms(manifest.options.get("algorithms", "")),
        "layouts": [],
        "compiler_version": manifest.compiler_version,
        "llvm_version": manifest.llvm_version,
    }


def _algorithms(text: str) -> list[dict[str, str]]:
    """Of the layers that are not computed as plain sums, a line each."""
    pairs = [line.partition(": ") for line in text.splitlines()]
    return [{"layer": layer, "algorithm": algorithm} for layer, _, algorithm in pairs]


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def _print_summary(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    rows = [(kind[:-1], s) for kind in ("inputs", "outputs") for s in summary[kind]]
    print_table(
        ("", "name", "type", "shape"),
        [(kind, s["name"], s["dtype"], shape_text(s["shape"])) for kind, s in rows],
    )
    click.echo()
    print_table(
        ("kernel", "calls", "parts", "flops"),
        [
            (k["name"], k["calls"], k["parts"], "" if k["flops"] is None else k["flops"])
            for k in summary["kernels"]
        ],
    )
    if summary["host"]:
        click.echo()
        print_table(
            ("then on the host", "op", "why"), [(h["node"], h["op"], h["why"]) for h in summary["host"]]
        )
        click.echo(f"{summary['nodes_after_host']} nodes after it are compiled when their types are known")
    if summary["algorithms"]:
        click.echo()
        print_table(("layer", "algorithm"), [(a["layer"], a["algorithm"]) for a in summary["algorithms"]])
    if summary["layouts"]:
        click.echo()
        print_table(("layouts, and what they cost by estimate",), [(line,) for line in summary["layouts"]])
    for key in summary["external"]:
        click.echo(f"external: {key}")
    click.echo()
    if summary["flops"] is not None:
        click.echo(f"{summary['flops'] / 1e9:.3g} GFLOP a run")
    click.echo(f"accuracy: {summary['accuracy']}")
    if summary["checked_indices"] is not None:
        click.echo(f"indices are checked, of {len(summary['checked_indices'])} nodes")
    if summary["tuned_kernels"]:
        click.echo(f"tuned: {summary['tuned_kernels']} kernels from the database")
    sizes = ", ".join(f"{n} {megabytes(summary[f'{n}_bytes'])}" for n in ("arena", "weights", "code"))
    click.echo(
        f"{sizes}; for {summary['triple']} with {', '.join(summary['features']) or 'no special features'}"
    )


# ------------------------------------------------------------------------------------------------------------ profile


def _profile(
    model: Path,
    compiled: Callable[[], Stages],
    files: dict[str, str],
    seed: int,
    threads: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Of a compiled program only the times are known."""
    threads = threads or default_threads()
    check_cores(threads)
    found = None if model.suffix == PROGRAM else compiled()
    artifact = read_program(model) if found is None else found.artifact
    feeds = make_feeds(artifact.manifest.inputs, files, seed)
    made = profile_program(
        artifact,
        feeds,
        target=native(),
        threads=threads,
        seconds=seconds,
        stages=found,
    )
    hosts = () if found is None else found.hosts
    if as_json:
        left_out = [{"node": h.step.name, "op": h.step.node.op_type, "why": h.why} for h in hosts]
        later = 0 if found is None else found.later
        print_json(
            {
                "model": str(model),
                "machine": machine().summary(),
                **made.as_json(),
                "host": left_out,
                "nodes_after_host": later,
            }
        )
        return
    show_profile(made)
    if hosts and found is not None:
        note(
            f"Only what comes before {hosts[0].step.node.op_type} on the host was profiled: {len(hosts)} nodes of the"
            f" host and {found.later} nodes after them were not, as their types depend on data."
        )
