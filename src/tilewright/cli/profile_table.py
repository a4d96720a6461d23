"""How a profile is shown."""

import click

from tilewright.cli.output import milliseconds, print_table
from tilewright.cli.profile import KernelProfile, Profile

_LEAST_SHARE = 0.001  # kernels with less are shown together
_COLUMNS = (
    "kernel",
    "time",
    "share",
    "calls",
    "parts",
    "GFLOP/s",
    "of peak",
    "GB/s",
    "of memory",
    "algorithm",
    "layout",
)


def show_profile(made: Profile) -> None:
    shown = [k for k in made.kernels if made.share(k) >= _LEAST_SHARE]
    rows = [_row(made, k) for k in shown]
    others = made.kernels[len(shown) :]
    if others:
        seconds = sum(k.seconds for k in others)
        share = f"{100 * seconds / made.inside:.1f} %"
        calls = sum(k.calls for k in others)
        rows.append(
            (f"{len(others)} others", milliseconds(seconds), share, calls, *[""] * (len(_COLUMNS) - 4))
        )
    print_table(_COLUMNS, rows)
    click.echo("\n" + "\n".join(totals(made)))


def _row(made: Profile, k: KernelProfile) -> tuple[str | int, ...]:
    flops, moved, limits = k.flop_rate, k.byte_rate, made.limits
    return (
        k.name,
        milliseconds(k.seconds),
        f"{100 * made.share(k):.1f} %",
        k.calls,
        k.parts,
        "" if flops is None else f"{flops / 1e9:.1f}",
        "" if flops is None else f"{100 * flops / limits.flop_rate:.0f} %",
        "" if moved is None else f"{moved / 1e9:.1f}",
        "" if moved is None else f"{100 * moved / limits.byte_rate:.0f} %",
        k.algorithm,
        k.layout,
    )


def totals(made: Profile) -> list[str]:
    """What is true of the whole run."""
    outside = max(made.outside, 0.0)
    flops = sum(k.flops or 0 for k in made.kernels)
    lines = [
        f"a run takes {milliseconds(made.total)} (median of {made.runs}, at best {milliseconds(made.best)}):"
        f" {milliseconds(made.inside)} in kernels, {milliseconds(outside)} outside, {100 * outside / made.total:.1f} %",
        f"limits of {made.threads} core(s), measured now: {made.limits.flop_rate / 1e9:.1f} GFLOP/s of float32"
        f" multiply-adds, {made.limits.byte_rate / 1e9:.1f} GB/s read from memory",
    ]
    if made.is_disturbed:
        lines.append(
            f"Other programs had our core for {100 * (1 - made.on_core):.0f} % of the time: times are too long,"
            " those of short kernels least."
        )
    if flops:
        rate = flops / made.total
        lines.insert(
            1,
            f"{flops / 1e9:.3g} GFLOP at {rate / 1e9:.1f} GFLOP/s: {100 * rate / made.limits.flop_rate:.0f} % of the"
            " peak",
        )
    return lines
