"""Calls of Funcs as calls of their kernels, over the buffers of the Module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.driver.kernels import Compiled, ConstantFolder, Item
from tilewright.ir.expr import Buffer
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import SizeBox
from tilewright.tir.func import Call

RangeKernels = Sequence[
    tuple[SizeBox, Compiled]
]  # in order: of several boxes that sizes are within, the first counts


@dataclass(slots=True)
class CallItems:
    """What needs only constants is computed when a call is made, and its `values` are constants then too. `shared` are
    the buffers between kernels of one Func; `counts` says how often each kernel is called.
    """

    values: dict[Buffer, OpaqueArray]
    shared: list[Buffer] = field(default_factory=list[Buffer])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    _folder: ConstantFolder = field(default_factory=ConstantFolder)
    _contiguous: dict[Buffer, OpaqueArray] = field(default_factory=dict[Buffer, OpaqueArray])
    _computed: dict[int, Buffer] = field(default_factory=dict[int, Buffer])  # by the identity of its array

    def of(self, call: Call, whole: Compiled, ranges: RangeKernels) -> list[Item]:
        """The kernels for all sizes, but where there are some for less; and those."""
        boxes = tuple(box for box, _ in ranges)
        items = [replace(i, unless=boxes) for i in self._items(call, whole)]
        for n, (box, compiled) in enumerate(ranges):
            items += [replace(i, only=box, unless=boxes[:n]) for i in self._items(call, compiled)]
        return items

    def _items(self, call: Call, compiled: Compiled) -> list[Item]:
        actual = dict(zip(compiled.func.params, call.args, strict=True))
        known = {p: self._array(b) for p, b in actual.items() if b in self.values}
        kernels, made = self._folder.fold(compiled, known)
        for b in compiled.shared:
            actual[b] = self._own(b, made)
        for k in kernels:
            self.counts[k.name] = self.counts.get(k.name, 0) + 1
        return [Item(k, tuple(actual[p] for p in k.func.params), call.func) for k in kernels]

    def _array(self, b: Buffer) -> OpaqueArray:
        """The same for each call, so that what is computed of it is found again."""
        if b not in self._contiguous:
            self._contiguous[b] = np.ascontiguousarray(self.values[b])
        return self._contiguous[b]

    def _own(self, b: Buffer, made: Mapping[Buffer, OpaqueArray]) -> Buffer:
        known = self._computed.get(id(made[b])) if b in made else None
        if known is not None:
            return known
        own = Buffer(f"{b.name}#{len(self.shared)}", b.shape, b.dtype, b.scope)
        self.shared.append(own)
        if b in made:
            self.values[own] = made[b]
            self._computed[id(made[b])] = own
        return own
