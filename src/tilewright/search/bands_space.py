"""The rule for a product whose result is padded and read through windows of one channel: in bands, near the core."""

from math import inf, prod

import numpy as np

from tilewright.cost.bands import BandForm, banded_cycles, bands, best_product_tile
from tilewright.cost.machine import machine_of
from tilewright.ir.expr import Load, Var, free_vars, loads
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.recipes.bands import BandPlan, Chain, schedule_bands, try_chain
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.lanes import is_lane_reduction
from tilewright.schedule.recipes.tiles import Tile
from tilewright.search.lanes_space import LanesSpace
from tilewright.search.space import Costs, Decisions, Knob, Points, Space
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Iter, IterKind, Store

_PRODUCT_UNROLL = 64


class BandsSpace(Space):
    rule = "bands"

    def __init__(self, start: Draft, chain: Chain, form: BandForm, target: Target) -> None:
        self._start, self._chain, self._form, self._target = start, chain, form, target
        self._machine = machine_of(target)
        self._windows = LanesSpace(start, chain.windows.name, target)
        self._points = np.array(bands(form, self._machine), dtype=np.int64).reshape(-1, 2)
        heights, widths = (tuple(int(v) for v in np.unique(self._points[:, n])) for n in range(2))
        self.knobs = (Knob("rows", heights), Knob("channels", widths))

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        return np.array([self._seconds(int(r), int(c)) for r, c in points])

    def _seconds(self, rows: int, channels: int) -> float:
        cycles = banded_cycles(self._form, rows, channels, self._machine)
        if cycles is None:
            return inf
        times = self._form.channels // channels
        return cycles / self._machine.hertz + times * self._windows.best_tile(channels)[1]

    def build(self, decisions: Decisions) -> Draft:
        rows, channels = decisions["rows"], decisions["channels"]
        tile = best_product_tile(self._form, channels, self._machine)
        if tile is None:
            raise ScheduleError(f"no register tile has columns that divide {channels} channels")
        (height, vectors, unroll), _ = self._windows.best_tile(channels)
        lanes = self._target.lanes(self._form.bytes_each)
        plan = BandPlan(
            rows=rows,
            channels=channels,
            product=Tile(tile[0], tile[1] * lanes),
            product_unroll=_PRODUCT_UNROLL,
            windows=Tile(height, vectors * lanes),
            windows_unroll=unroll,
        )
        s = Draft(self._start.module, self._start.trace)
        schedule_bands(s, self._chain, plan, self._target)
        return s


def bands_space(start: Draft, target: Target, constants: frozenset[str]) -> Space | None:
    """The space of a Func that is such a chain."""
    chain = try_chain(start.func)
    if chain is None or not is_lane_reduction(chain.windows):
        return None
    form = try_form(chain)
    return None if form is None else BandsSpace(start, chain, form, target)


def try_form(chain: Chain) -> BandForm | None:
    """The chain by numbers, if its windows slide over two dimensions or more of one channel each. Layouts do not
    matter.
    """
    store, padded, made = chain.windows.body, chain.padding.body, chain.between.body
    assert isinstance(store, Store) and isinstance(padded, Store) and isinstance(made, Store)
    image = [ld for ld in loads(store.value) if ld.buffer is padded.buffer]
    others = [ld for ld in loads(store.value) if ld.buffer not in (padded.buffer, store.buffer)]
    if len(image) != 1 or len(others) != 1:
        return None
    spatial = [it for it in chain.windows.iters if it.kind is IterKind.SPATIAL]
    channel = [it for it in spatial if any(it.var in free_vars(i) for i in others[0].indices)]
    if len(channel) != 1 or channel[0].var not in image[0].indices:
        return None
    pixels = _sliding(chain.windows, image[0])
    if len(pixels) < 2 or padded.buffer.shape[pixels[-1][1]] < 2:
        return None
    (high, at), (_, across) = pixels[-2:]
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in chain.windows.iters})
    steps = dict(simplify.linear(image[0].indices[at]).terms)
    extents = {it.var: it.extent for it in chain.windows.iters}
    reach = 1 + sum(
        k * (extents[v] - 1) for v, k in steps.items() if isinstance(v, Var) and v is not high.var
    )
    return BandForm(
        images=prod(
            it.extent for it in spatial if it is not channel[0] and it not in (p[0] for p in pixels[-2:])
        ),
        rows=high.extent,
        channels=channel[0].extent,
        stride=steps[high.var],
        reach=reach,
        in_rows=made.buffer.shape[at],
        in_columns=made.buffer.shape[across],
        wide_columns=padded.buffer.shape[across],
        k=prod(it.extent for it in chain.product.iters if it.kind is IterKind.REDUCE),
        bytes_each=made.buffer.dtype.bytes,
    )


def _sliding(block: Block, image: Load) -> list[tuple[Iter, int]]:
    """The spatial iterators along which windows slide, each with the dimension of the image, in the order of these."""
    by_var = {it.var: it for it in block.iters}
    found: list[tuple[Iter, int]] = []
    for d, index in enumerate(image.indices):
        used = [by_var[v] for v in free_vars(index)]
        moving = [it for it in used if it.kind is IterKind.SPATIAL]
        if len(used) > 1 and len(moving) == 1:
            found.append((moving[0], d))
    return found
