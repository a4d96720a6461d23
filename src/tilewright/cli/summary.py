"""A program in numbers: what goes in and out, its kernels, how it was made, and how large it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tilewright.cli.output import megabytes, print_table, shape_text
from tilewright.ops.accuracy import EXACT
from tilewright.profiling.call_times import kernel_calls
from tilewright.support.artifact import (
    Artifact,
    ExternalCall,
    KernelCall,
    Manifest,
    TensorSpec,
)
from tilewright.support.program import leaves
from tilewright.support.sizes import SizeExpr
from tilewright.target.target import unused_features


def summary_of(artifact: Artifact, flops: Mapping[str, int]) -> dict[str, Any]:
    """`flops` are the float operations of kernels, by name; empty where they are not known."""
    kernels: dict[str, dict[str, Any]] = {}
    for call in kernel_calls(artifact.program):
        fresh = {
            "name": call.kernel,
            "calls": 0,
            "parts": call.parts,
            "parts_in_use": parts_text(call),
            "where": where_text(call),
            "flops": flops.get(call.kernel),
        }
        kernels.setdefault(call.kernel, fresh)["calls"] += 1
    manifest = artifact.manifest
    return {
        "inputs": [_spec(s) for s in manifest.given],
        "outputs": [_spec(s) for s in manifest.outputs],
        **dims_json(artifact),
        "kernels": list(kernels.values()),
        "external": [s.key for s in leaves(artifact.program) if isinstance(s, ExternalCall)],
        "host": [],
        "nodes_after_host": 0,
        "flops": sum(k["calls"] * k["flops"] for k in kernels.values()) if flops else None,
        "arena_bytes": artifact.arena_bytes,
        "weights_bytes": artifact.weights_bytes,
        "code_bytes": artifact.code_bytes,
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
    """Where dimensions are open, the shape is the largest, and `sizes` say what is in use of it."""
    sizes = spec.sizes or (None,) * len(spec.shape)
    texts = [str(n if s is None else s) for n, s in zip(spec.shape, sizes, strict=True)]
    shown = [f"({t})" if " " in t and not t.startswith("(") else t for t in texts]
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), "sizes": shown}


def parts_text(call: KernelCall) -> str | None:
    """How many parts of a call have something to do, by the sizes of open dimensions; None if all have."""
    if not call.in_use:
        return None
    sizes = [str(e) for e in call.in_use]
    return sizes[0] if len(sizes) == 1 else f"max({', '.join(sizes)})"


def where_text(call: KernelCall) -> str | None:
    """For which sizes of open dimensions the call is made; None if for all."""
    if not call.is_optional:
        return None
    only = [f"{name} <= {most}" for name, most in call.only]
    above = {
        name: max(m for box in call.unless for n, m in box if n == name)
        for box in call.unless
        for name, _ in box
    }
    return ", ".join([*only, *(f"{name} > {most}" for name, most in above.items())])


def dims_json(artifact: Artifact) -> dict[str, Any]:
    """The open dimensions with their ranges, what sizes must keep besides, and how far programs for smaller ranges
    go.
    """
    manifest = artifact.manifest
    dims = [
        {"name": d.name, "least": d.least, "most": d.most, "step": d.multiple, "text": str(d)}
        for d in manifest.dims
    ]
    narrower = [_largest(a.manifest, manifest) for a in artifact.narrower]
    return {"dims": dims, "guards": [str(g) for g in manifest.guards], "narrower": narrower}


def _largest(manifest: Manifest, whole: Manifest) -> dict[str, int]:
    """The upper ends of the dimensions that are open in the `whole`; some of them may be fixed here."""
    found = {d.name: d.most for d in manifest.dims}
    for spec, own in zip(whole.given, manifest.given, strict=True):
        for size, n in zip(spec.sizes, own.shape, strict=False):
            dim = None if size is None else next((d for d in whole.dims if size == SizeExpr.of_dim(d)), None)
            if dim is not None:
                found.setdefault(dim.name, n)
    return {d.name: found[d.name] for d in whole.dims if found.get(d.name, d.most) < d.most}


def print_dims(found: Mapping[str, Any]) -> None:
    for dim in found["dims"]:
        click.echo(f"open: {dim['text']}")
    for guard in found["guards"]:
        click.echo(f"only for sizes with: {guard}")
    for box in found["narrower"]:
        sizes = ", ".join(f"{name} up to {most}" for name, most in box.items())
        click.echo(f"with a program of its own for {sizes}")


def _print_kernels(kernels: Sequence[Mapping[str, Any]], *, is_open: bool) -> None:
    """Where dimensions are open, parts and flops are those at the largest sizes."""
    is_chosen = any(k["where"] for k in kernels)
    columns = (
        "kernel",
        "calls",
        "parts",
        *(("in use",) if is_open else ()),
        "flops",
        *(("where",) if is_chosen else ()),
    )
    rows = [
        (
            k["name"],
            k["calls"],
            k["parts"],
            *((k["parts_in_use"] or "all",) if is_open else ()),
            "" if k["flops"] is None else k["flops"],
            *((k["where"] or "",) if is_chosen else ()),
        )
        for k in kernels
    ]
    print_table(columns, rows)


def print_summary(summary: Mapping[str, Any]) -> None:
    if summary["machine"]:
        click.echo(f"made with the figures of {summary['machine']}")
    for name in summary["not_used_yet"]:
        click.echo(f"not used yet: {name}")
    rows = [(kind[:-1], s) for kind in ("inputs", "outputs") for s in summary[kind]]
    print_table(
        ("", "name", "type", "shape"),
        [(kind, s["name"], s["dtype"], shape_text(s["sizes"])) for kind, s in rows],
    )
    print_dims(summary)
    click.echo()
    _print_kernels(summary["kernels"], is_open=bool(summary["dims"]))
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
        at = " at the largest sizes" if summary["dims"] else ""
        click.echo(f"{summary['flops'] / 1e9:.3g} GFLOP a run{at}")
    click.echo(f"accuracy: {summary['accuracy']}")
    if summary["checked_indices"] is not None:
        click.echo(f"indices are checked, of {len(summary['checked_indices'])} nodes")
    if summary["tuned_kernels"]:
        click.echo(f"tuned: {summary['tuned_kernels']} kernels from the database")
    sizes = ", ".join(f"{n} {megabytes(summary[f'{n}_bytes'])}" for n in ("arena", "weights", "code"))
    click.echo(
        f"{sizes}; for {summary['triple']} with {', '.join(summary['features']) or 'no special features'}"
    )
