"""The part of `inspect` that needs the compiler: models are compiled, and looked at while they are; or run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.cli.dims import sizes_text
from tilewright.cli.feeds import make_program_feeds, read_sample
from tilewright.cli.flow_view import flow_svg
from tilewright.cli.machine import check_cores, machine
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import note, print_json, write_drawing
from tilewright.cli.placement_view import show_placement
from tilewright.cli.profile import profile
from tilewright.cli.profile_table import show_profile
from tilewright.cli.summary import summary_of
from tilewright.cli.traffic_table import with_times
from tilewright.cli.traffic_view import traffic_view
from tilewright.cli.views import pick
from tilewright.driver.kernels import Compiled, NativeKernel
from tilewright.graph.printer import print_graph
from tilewright.placement.options import PluginOptions
from tilewright.profiling.flops import count_flops
from tilewright.runtime.file import load_artifact as read_program
from tilewright.runtime.machine import default_threads
from tilewright.stages import Stages, stages
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError
from tilewright.target.target import native
from tilewright.tir.func import Module
from tilewright.tir.printer import print_func, print_module

MODULES: dict[str, Callable[[Stages], Module]] = {"tir": lambda s: s.tir, "scheduled": lambda s: s.scheduled}
KERNELS: dict[str, Callable[[Stages, NativeKernel], str]] = {
    "lowered": lambda _, k: print_func(k.func),
    "llvm": lambda _, k: k.llvm,
    "asm": lambda s, k: s.asm(k.name),
}


# -------------------------------------------------------------------------------------------------------------- views


def summary_view(found: Stages) -> dict[str, Any]:
    summary = summary_of(found.artifact, {k.name: count_flops(k.func.body) for k in found.kernels})
    summary["narrower"] = [dict(box) for box in found.narrower]
    why = [str(c) for c in found.layouts]
    return {**summary, "tuned_kernels": found.tuned, "layouts": why, **_on_the_host(found)}


def trace_view(found: Stages) -> str:
    """Of all programs that there are, where dimensions are open."""
    return str(found.trace)


def text_view(found: Stages, ir: str, kernel: str | None) -> dict[str, Any]:
    """The text of all of it, and of its parts by name; if a `kernel` is given, it is all there is."""
    if ir == "graph":
        return {"whole": print_graph(found.graph), "parts": {}}
    if ir in MODULES:
        module = MODULES[ir](found)
        return {"whole": print_module(module), "parts": {f.name: print_func(f) for f in module.funcs}}
    named = {k.name: k for k in found.kernels}
    kernels = named.values() if kernel is None else (pick(named, kernel),)
    parts = {k.name: KERNELS[ir](found, k) for k in kernels}
    return {"whole": "\n".join(parts.values()), "parts": parts}


def traffic_of_model(
    model: Path,
    options: Mapping[str, Any],
    threads: int | None,
    run: tuple[dict[str, str], int, float, dict[str, int]] | None,
    kernel: str | None,
    svg: Path | None,
) -> dict[str, Any]:
    """With times of a run if `run` says how: inputs, seed, seconds and sizes of open dimensions; and with a drawing of
    one kernel. What moves is that at the largest sizes.
    """
    found = stages(model, **options, sizes=None if run is None else run[-1])
    view = traffic_view(found, threads or (1 if run is None else default_threads()))
    if run is not None:
        files, seed, seconds, sizes = run
        check_cores(view["threads"])
        feeds, sizes = make_program_feeds(found.artifact.manifest, files, seed, sizes)
        made = profile(
            found.artifact,
            feeds,
            target=native(),
            threads=view["threads"],
            seconds=seconds,
            stages=found,
            sizes=sizes,
        )
        view = with_times(view, {k.name: k.seconds for k in made.kernels})
    if svg is not None:
        write_drawing(svg, flow_svg(_drawn(found, view, kernel)))
    return view


def _program_at(artifact: Artifact, sizes: Mapping[str, int]) -> Artifact:
    """The program that runs at these sizes; those that are not told are the largest."""
    return artifact.at({**{d.name: d.most for d in artifact.manifest.dims}, **sizes})


def _drawn(found: Stages, view: Mapping[str, Any], kernel: str | None) -> Compiled:
    """What the named kernel was made from, or the first of the view."""
    names = {k["name"]: k["name"] for k in view["kernels"]}
    if not names:
        raise UserError("no kernel of the model runs before the host does", hint="there is nothing to draw")
    name = next(iter(names)) if kernel is None else pick(names, kernel)
    return next(c for c in found.compiled if name in [k.name for k in c.kernels])


def _on_the_host(found: Stages | None) -> dict[str, Any]:
    """What the host runs, and how much comes after it."""
    hosts = () if found is None else found.hosts
    listed = [{"node": h.step.name, "op": h.step.node.op_type, "why": h.why} for h in hosts]
    return {"host": listed, "nodes_after_host": 0 if found is None else found.later}


# --------------------------------------------------------------------------------------------- plugins, and the profile


def show_placement_of(
    model: Path,
    options: Mapping[str, Any],
    wanted: tuple[tuple[str, ...], str, bool, int | None, tuple[str, ...]],
    svg: Path | None,
    as_json: bool,
) -> None:
    """`wanted`: plugins, policy, whether failures are errors, threads and samples to calibrate with."""
    plugins, policy, strict, threads, samples = wanted
    plugin_options = PluginOptions.of(plugins, policy, strict, threads, map(read_sample, samples))
    show_placement(stages(model, **options, plugin_options=plugin_options), svg, as_json)


def show_profile_of(
    model: Path,
    options: Mapping[str, Any],
    run: tuple[dict[str, str], int, float, dict[str, int]],
    threads: int | None,
    as_json: bool,
) -> None:
    """Of a compiled program only the times are known; and of one with open dimensions, at less than the largest sizes.
    `run`: inputs, seed, seconds and sizes.
    """
    files, seed, seconds, sizes = run
    threads = threads or default_threads()
    check_cores(threads)
    found = None if model.suffix == PROGRAM else stages(model, **options, sizes=sizes)
    artifact = _program_at(read_program(model), sizes) if found is None else found.artifact
    feeds, sizes = make_program_feeds(artifact.manifest, files, seed, sizes)
    is_whole = all(sizes[d.name] == d.most for d in artifact.manifest.dims)
    about = found if is_whole else None
    made = profile(
        artifact, feeds, target=native(), threads=threads, seconds=seconds, stages=about, sizes=sizes
    )
    if as_json:
        here = machine().summary()
        facts = {"model": str(model), "machine": here, "sizes": sizes}
        print_json({**facts, **made.as_json(), **_on_the_host(found)})
        return
    show_profile(made)
    if sizes:
        told = "" if is_whole else "; rates are known at the largest sizes only"
        note(f"Profiled with {sizes_text(sizes)}{told}.")
    if found is not None and found.hosts:
        note(
            f"Only what comes before {found.hosts[0].step.node.op_type} on the host was profiled:"
            f" {len(found.hosts)} nodes of the host and {found.later} nodes after them were not, as their types"
            " depend on data."
        )
