"""A program in numbers: what goes in and out, its kernels, how it was made, and how large it is."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from tilewright.cli.output import megabytes, print_table, shape_text
from tilewright.ops.accuracy import EXACT
from tilewright.support.artifact import (
    Artifact,
    ArtifactProgram,
    ExternalCall,
    KernelCall,
    Segment,
    TensorSpec,
)
from tilewright.support.program import leaves
from tilewright.target.target import unused_features


def kernel_calls(program: ArtifactProgram) -> Iterator[KernelCall]:
    """In program order; the bodies of branches and loops once."""
    return (c for step in leaves(program) if isinstance(step, Segment) for c in step.calls)


def summary_of(artifact: Artifact, flops: Mapping[str, int]) -> dict[str, Any]:
    """`flops` are the float operations of kernels, by name; empty where they are not known."""
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
        "machine": manifest.options.get("machine", ""),
        "not_used_yet": list(unused_features()),
        "compiler_version": manifest.compiler_version,
        "llvm_version": manifest.llvm_version,
    }


def _algorithms(text: str) -> list[dict[str, str]]:
    """Of the layers that are not computed as plain sums, a line each."""
    pairs = [line.partition(": ") for line in text.splitlines()]
    return [{"layer": layer, "algorithm": algorithm} for layer, _, algorithm in pairs]


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def print_summary(summary: Mapping[str, Any]) -> None:
    if summary["machine"]:
        click.echo(f"made with the figures of {summary['machine']}")
    for name in summary["not_used_yet"]:
        click.echo(f"not used yet: {name}")
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
