"""The errors of convolutions against float64: by algorithm, by size of the layer, by kind of weights and of data."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.results import table, write
from examples.models import Net
from tilewright.api import load
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.cook_toom import Scheme, scheme
from tilewright.ops.core.window import Window
from tilewright.ops.core.winograd_error import winograd_error
from tilewright.stages import stages

Array: TypeAlias = NDArray[Any]

SHOWS = """What Winograd's algorithms lose against the plain float32 sum: a factor of a few, which grows with the tile
and with the square root of the channels."""

METHOD = """An error is the largest difference from the same sum in float64, over the largest output.

*Measured* figures are those that compilation compares with `accuracy=`: with the layer's weights and normal noise, for
some tiles and channels, emulated in numpy; here the largest of {seeds} layers with weights from other seeds. *Native*
figures are of a whole layer, as it is compiled by default and with `accuracy="exact"`, and run. Weights are normal
unless it says otherwise. F(m, r) gives m outputs of r taps with m + r - 1 products along an axis."""

NOTES = """- What compilation measures is half to all of what the whole layer has on noise: a layer has more outputs
  than the sample, and the largest errors are rare.
- The plain sum of a 3 × 3 layer adds nine times as many terms one after the other, so its error is no smaller than that
  of F(2×2, 3×3), and on smooth data it may be larger than that of F(4×4, 3×3).
- Weights hardly matter, because the error is relative to the largest output. Those that are so small that float32
  has few bits left for them give errors that the default bound does not allow; so do transforms that overflow."""

CHANNELS = (16, 32, 64, 128, 256, 512, 1024)
NATIVE = ((32, 56), (64, 56), (128, 28), (256, 14), (512, 7))


def algorithm(outputs: int, *kernel: int) -> list[Scheme]:
    found = [scheme(1 if k == 1 else outputs, k) for k in kernel]
    return [s for s in found if s is not None]


ALGORITHMS = {
    "F(2, 3)": algorithm(2, 3),
    "F(4, 3)": algorithm(4, 3),
    "F(2×2, 3×3)": algorithm(2, 3, 3),
    "F(4×4, 3×3)": algorithm(4, 3, 3),
    "F(2×2, 5×5)": algorithm(2, 5, 5),
}


def normal(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    return rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(math.prod(shape[1:])))


def zero_sum(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """As edge detectors are."""
    w = normal(rng, shape)
    return w - w.mean(axis=tuple(range(2, w.ndim)), keepdims=True)


def mostly_zero(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """One weight of ten is left."""
    return normal(rng, shape) * (rng.random(shape) < 0.1)


def wide(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Magnitudes of each channel from 1e-4 to 1e4."""
    scale = np.exp(rng.uniform(-9.2, 9.2, (shape[0], shape[1], *[1] * (len(shape) - 2))))
    return (normal(rng, shape) * scale).astype(np.float32)


WEIGHTS: dict[str, Callable[[np.random.Generator, Sequence[int]], Array]] = {
    "normal": normal,
    "positive": lambda rng, shape: np.abs(normal(rng, shape)),
    "zero-sum filters": zero_sum,
    "one of ten": mostly_zero,
    "magnitudes 1e-4 … 1e4": wide,
    "smallest, 1e-41": lambda rng, shape: normal(rng, shape) * np.float32(1e-41),
}


def measured(schemes: Sequence[Scheme], weights: Callable[..., Array], channels: int, seeds: int) -> float:
    kernel = [s.taps for s in schemes]
    layers = [weights(np.random.default_rng(n), (channels, channels, *kernel)) for n in range(seeds)]
    return max(winograd_error(schemes, w, seed) for seed, w in enumerate(layers))


# ------------------------------------------------------------------------------------------------------- native layers


def ramp(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Smooth, positive, with little noise: a picture."""
    places = np.meshgrid(*(np.linspace(0, 1, n) for n in shape[2:]), indexing="ij")
    smooth = 1 + sum(places) * rng.uniform(0.5, 1, (*shape[:2], *[1] * len(places)))
    return (smooth + 0.01 * rng.standard_normal(shape)).astype(np.float32)


DATA: dict[str, Callable[[np.random.Generator, Sequence[int]], Array]] = {
    "noise": lambda rng, shape: rng.standard_normal(shape, np.float32),
    "rectified noise": lambda rng, shape: np.maximum(rng.standard_normal(shape, np.float32), 0),
    "smooth": ramp,
}


def native_rows(channels: int, extent: int) -> list[list[str]]:
    """A layer by the algorithm that is chosen for it, and as the plain sum."""
    rng = np.random.default_rng(channels)
    weights = normal(rng, (channels, channels, 3, 3))
    net = Net(0)
    net.op("Conv", "x", net.constant("w", weights), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    shape = (1, channels, extent, extent)
    model = net.model("layer", {"x": shape}, {"y": shape})
    op = Conv(Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)))
    rows: list[list[str]] = []
    for accuracy in (None, "exact"):
        chosen = [f.algorithm for f in stages(model, accuracy=accuracy).tir.funcs if f.algorithm]
        cells: list[str] = []
        with load(model, threads=1, accuracy=accuracy, cache=False) as session:
            for make in DATA.values():
                x = make(rng, shape)
                (exact,) = op.reference((x.astype(np.float64), weights.astype(np.float64)))
                found = session.run({"x": x})["y"]
                cells.append(f"{np.abs(found - exact).max() / np.abs(exact).max():.1e}")
        rows.append(
            [f"{channels} channels, {extent} × {extent}", chosen[0] if chosen else "plain sum", *cells]
        )
    return rows


@click.command()
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1), help="Layers of each kind.")
def main(seeds: int) -> None:
    """Measure the errors of algorithms; writes docs/results/accuracy.md."""
    os.environ["TILEWRIGHT_CACHE"] = os.environ["TILEWRIGHT_DB"] = "off"
    sizes = [
        [str(c), *(f"{measured(a, normal, c, seeds):.1e}" for a in ALGORITHMS.values())] for c in CHANNELS
    ]
    kinds = [
        [kind, *(f"{measured(a, make, 64, seeds):.1e}" for a in ALGORITHMS.values())]
        for kind, make in WEIGHTS.items()
    ]
    native = [row for layer in NATIVE for row in native_rows(*layer)]
    parts = [
        "## Measured, by channels (input and output)",
        table(("channels", *ALGORITHMS), sizes),
        "## Measured, by kind of weights (64 channels)",
        table(("weights", *ALGORITHMS), kinds),
        "## Native, 3 × 3, by kind of data",
        table(("layer", "algorithm", *DATA), native),
        "## Notes",
        NOTES,
    ]
    click.echo("\n\n".join(parts))
    path = write("accuracy", "Errors of algorithms", SHOWS, METHOD.format(seeds=seeds), *parts)
    click.echo(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
