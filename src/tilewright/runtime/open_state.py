"""What one run of a program leaves to the next: caches of keys and values, states of recurrent networks.

A state has arrays of the capacity for the inputs that are outputs of the run before. Where the program appends to an
input, the output is the same array with more of it in use: a run stores what is new, and `advance` counts it. An output
of the type of its input has an array of its own, and the two change places. Only what is neither is copied.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import assert_never

import numpy as np
from numpy.typing import ArrayLike

from tilewright.runtime.feeds import Feeds, as_array
from tilewright.runtime.memory import MemoryRegion
from tilewright.runtime.open_sizes import OpenSizes, OutOfRange, Sized, in_use, place_of
from tilewright.runtime.program import dtype_of, nbytes_of
from tilewright.runtime.session import ContextPool
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import TensorSpec
from tilewright.support.errors import Hint, UserError
from tilewright.support.sizes import DimUnits, SizeExpr

_RENAMED = (("past_key_values", "present"), ("past", "present"))  # how exporters name what a run leaves


@unique
class Kept(Enum):
    """How an output becomes an input."""

    APPENDED = "appended"  # it is the same array
    SWAPPED = "swapped"  # the two change places
    COPIED = "copied"


@dataclass(frozen=True, slots=True)
class StatePair:
    """The output of a run that is an input of the next."""

    input: int
    output: int
    kept: Kept


def find_pairs(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    in_place: Mapping[int, int],
    states: Iterable[tuple[int, int]],
    given: Mapping[str, str] | None,
) -> tuple[StatePair, ...]:
    """The pairs that are given as names of outputs and inputs; otherwise those that are known from the program: what is
    appended in place, `states` of recurrences, and equal types with names of a past and a present.
    """
    if given is None:
        return _known_pairs(inputs, outputs, in_place, states)
    at = {s.name: i for i, s in enumerate(inputs)}
    number = {s.name: o for o, s in enumerate(outputs)}
    pairs: list[StatePair] = []
    for out, name in given.items():
        if out not in number or name not in at:
            what, wrong = ("output", out) if out not in number else ("input", name)
            raise UserError(f"a state is given with the {what} {wrong!r}, which the model does not have")
        i, o = at[name], number[out]
        if any(i == p.input or o == p.output for p in pairs):
            raise UserError(f"the state has {name!r} or {out!r} in several pairs")
        if in_place.get(i, o) != o:
            own = outputs[in_place[i]].name
            raise UserError(f"{name!r} is what the program appends to in place: its output is {own!r}")
        pairs.append(StatePair(i, o, _how_kept(inputs[i], outputs[o], i in in_place)))
    return tuple(pairs)


def _known_pairs(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    in_place: Mapping[int, int],
    states: Iterable[tuple[int, int]],
) -> tuple[StatePair, ...]:
    named = {present: i for i, s in enumerate(inputs) for present in _presents(s.name)}
    found: list[StatePair] = []
    first = {o: i for i, o in (*states, *in_place.items())}
    for o, spec in enumerate(outputs):
        i = named.get(spec.name, first.get(o))
        if i is not None and in_place.get(i) == o:
            found.append(StatePair(i, o, Kept.APPENDED))
        elif i is not None and i not in in_place and _is_same_type(inputs[i], spec):
            found.append(StatePair(i, o, Kept.SWAPPED))
    if not found:
        raise UserError(
            "no output of the model is known to be an input of the next run",
            hint=Hint(
                'name them: session.state(pairs={"present": "past"})',
                command="state is kept by programs that use the library: session.state() is its name there",
            ),
        )
    return tuple(found)


def _how_kept(spec: TensorSpec, result: TensorSpec, is_in_place: bool) -> Kept:
    if is_in_place:
        return Kept.APPENDED
    if _is_same_type(spec, result):
        return Kept.SWAPPED
    if spec.dtype == result.dtype and len(spec.shape) == len(result.shape):
        return Kept.COPIED
    raise UserError(f"the output {result.name!r} does not have the type of the input {spec.name!r}")


def _presents(name: str) -> Iterator[str]:
    """What an output is called whose input has this name."""
    return (name.replace(past, present) for past, present in _RENAMED if past in name)


def _is_same_type(a: TensorSpec, b: TensorSpec) -> bool:
    return (a.dtype, a.shape, a.sizes) == (b.dtype, b.shape, b.sizes)


class State:
    """Arrays that runs of one session keep. Use a state from one Python thread at a time.

    `run` reads the state and writes the next one; `advance` makes that the state; `step` does both. Results are views
    of arrays of the state, which the next run overwrites: copy what you want to keep.
    """

    def __init__(
        self,
        sizes: OpenSizes,
        pool: ContextPool,
        pairs: tuple[StatePair, ...],
        in_place: Mapping[int, int],
        start: Feeds,
        window: int | None,
    ) -> None:
        self._sizes, self._pool, self._pairs, self._window = sizes, pool, pairs, window
        self._in_place = in_place
        self._mark = object()  # of contexts whose tables lead to our arrays
        kept = {p.input for p in pairs}
        self._fed = [i for i in range(len(sizes.inputs)) if i not in kept]
        self._names = [sizes.inputs[i].name for i in self._fed]
        self._other = [o for o in range(len(sizes.outputs)) if o not in {p.output for p in pairs}]
        fed = [sizes.inputs[i] for i in self._fed]
        self._where = {d.name: place_of(d, fed) for d in sizes.dims}
        self._named = {p.input: _named(sizes.inputs[p.input]) for p in pairs}
        ends = {d.name: d for d in sizes.dims}
        grown = {p.input: self._axis(p) for p in pairs if p.kept is Kept.APPENDED}
        self._grown = {i: (axis, ends[name]) for i, (axis, name) in grown.items()}  # by the input
        self._ends = tuple(dict.fromkeys(dim for _, dim in self._grown.values()))
        for dim in self._ends:
            if window is not None and not dim.allows(window):
                raise UserError(
                    f"a window of {window} elements is asked for, and the program is made for {dim}"
                )
        self._results = [_zeros(s) for s in sizes.outputs]
        self._inputs = [
            self._results[in_place[i]] if i in in_place else _zeros(s) for i, s in enumerate(sizes.inputs)
        ]
        self._numbers = [np.zeros(1, np.int64) for _ in sizes.read]
        self._last: Sized | None = None  # of a run since the last advance
        self._values: dict[str, int] = {}  # dimensions that what is kept has
        self._shapes: dict[int, tuple[int, ...]] = {}  # of inputs that are kept, once they are known
        self.reset(start)

    def _axis(self, pair: StatePair) -> tuple[int, str]:
        """The axis along which an output is longer than its input, and the dimension that the input's length is."""
        spec, result = self._sizes.inputs[pair.input], self._sizes.outputs[pair.output]
        longer = [d for d, (a, b) in enumerate(zip(spec.sizes, result.sizes, strict=True)) if a != b]
        if len(longer) == 1:
            name = _whole(spec.sizes[longer[0]])
            if name is not None:
                return longer[0], name
        raise UserError(f"the length of {spec.name} is no dimension of the model, so it cannot be a state")

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions that what is kept has now: `{"past": 17}`."""
        return dict(self._values)

    @property
    def arrays(self) -> dict[str, OpaqueArray]:
        """What is kept, by the names of inputs: views. What is empty, or was never written, is not among them."""
        names = {i: self._sizes.inputs[i].name for i in self._shapes}
        return {names[i]: self._inputs[i][_whole_of(shape)] for i, shape in self._shapes.items()}

    def reset(self, start: Feeds | None = None) -> None:
        """Begin anew, with these arrays for inputs that are kept. Others are empty, or zero."""
        given = self._checked(start or {})
        self._last, self._values, self._shapes = None, {}, {}
        for p in self._pairs:
            array = given.get(p.input)
            if array is not None:
                self._inputs[p.input][_whole_of(array.shape)] = array
                self._hold(p, array.shape)
            elif p.kept is not Kept.APPENDED:
                self._inputs[p.input][...] = 0
        for dim in self._ends:
            self._values.setdefault(dim.name, 0)

    def _checked(self, start: Feeds) -> dict[int, OpaqueArray]:
        """Arrays to begin with, by the numbers of inputs."""
        kept = {self._sizes.inputs[p.input].name: p.input for p in self._pairs}
        unknown = next((str(n) for n in start if n not in kept), None)
        if unknown is not None:
            raise UserError(f"{unknown}: is no input that is kept", hint=f"these are: {', '.join(kept)}")
        found: dict[int, OpaqueArray] = {}
        for name, i in kept.items():
            if name in start:
                array = _typed(start[name], self._sizes.inputs[i])
                _check_room(self._sizes.inputs[i], array.shape)
                found[i] = array
        missing = [i for i in self._grown if i not in found]
        if missing and len(missing) < len(self._grown):
            raise UserError(
                f"{self._sizes.inputs[missing[0]].name}: missing, and others are given that are as long"
            )
        return found

    def _hold(self, pair: StatePair, shape: tuple[int, ...]) -> None:
        """An input that is kept has this shape now."""
        self._shapes[pair.input] = shape
        for axis, name in self._named[pair.input]:
            self._values[name] = shape[axis]

    def step(self, feeds: Feeds) -> dict[str, OpaqueArray]:
        """`run`, and `advance`."""
        found = self.run(feeds)
        self.advance()
        return found

    def run(self, feeds: Feeds) -> dict[str, OpaqueArray]:
        """Run once on the state as it is. `feeds` are the inputs that are not kept; the results are so, too."""
        arrays = self._arrays(feeds)
        sized = self._sized_for(arrays)
        for i, array in zip(self._fed, arrays, strict=True):
            self._inputs[i][sized.inputs[i]] = array
        for number, n in zip(self._numbers, sized.numbers, strict=True):
            number[0] = n
        pool = self._pool
        context = pool.take()
        try:
            context.use(sized.choice, sized.parts, sized.values)
            if context.attached is not self._mark:
                context.attach([*self._inputs, *self._numbers], self._results)
                context.attached = self._mark
            context.run()
        finally:
            context.detach()
            pool.give(context)
        self._last = sized
        outputs = self._sizes.outputs
        return {outputs[o].name: in_use(self._results[o], sized.outputs[o]) for o in self._other}

    def advance(self, count: int | None = None) -> None:
        """What the last run wrote is the state now. `count`: how many of the elements that it appended are kept."""
        sized = self._last
        if sized is None:
            raise UserError("the state is advanced without a run before it", hint="call run first")
        if count is not None and len(self._grown) < len(self._pairs):
            raise UserError("a part of what a run wrote is taken, and not all of the state is appended to")
        # Layers are alike: what is in use of them is the same tuple, and so is what comes next.
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        shapes: list[tuple[int, ...]] = []
        for p in self._pairs:
            key = (id(sized.inputs[p.input]), id(sized.outputs[p.output]))
            shape = known.get(key)
            if shape is None:
                shape = known[key] = self._next_shape(p, sized, count)
            shapes.append(shape)
        for p, shape in zip(self._pairs, shapes, strict=True):
            source, target = self._results[p.output], self._inputs[p.input]
            match p.kept:
                case Kept.APPENDED:
                    shape = shape if self._window is None else self._within_window(p, shape)
                case Kept.SWAPPED:
                    self._swap(p)
                case Kept.COPIED:
                    target[_whole_of(shape)] = source[_whole_of(shape)]
                case _:
                    assert_never(p.kept)
            self._hold(p, shape)
        self._last = None

    def _swap(self, pair: StatePair) -> None:
        i, o = pair.input, pair.output
        self._inputs[i], self._results[o] = self._results[o], self._inputs[i]
        for appended in (j for j, result in self._in_place.items() if result == o):
            self._inputs[appended] = self._results[o]
        self._mark = object()

    def _next_shape(self, pair: StatePair, sized: Sized, count: int | None) -> tuple[int, ...]:
        shape = [s.stop for s in sized.outputs[pair.output]]
        if pair.kept is Kept.COPIED:
            _check_room(self._sizes.inputs[pair.input], shape)
        if count is not None:
            axis, _ = self._grown[pair.input]
            before = sized.inputs[pair.input][axis].stop
            if not 0 <= count <= shape[axis] - before:
                raise UserError(f"{count} elements are taken of {shape[axis] - before} that were appended")
            shape[axis] = before + count
        return tuple(shape)

    def _within_window(self, pair: StatePair, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is kept. Where the range has ended, the last elements move to the front: once for as many
        runs as it takes to fill what is beyond the window.
        """
        axis, dim = self._grown[pair.input]
        if shape[axis] <= dim.most:
            return shape
        assert self._window is not None
        new = (*shape[:axis], self._window, *shape[axis + 1 :])
        last = (*_whole_of(shape[:axis]), slice(shape[axis] - self._window, shape[axis]))
        self._inputs[pair.input][_whole_of(new)] = self._inputs[pair.input][last][
            _whole_of(new)
        ].copy()  # the two overlap
        return new

    # ------------------------------------------------------------------------------------------------------- feeds

    def _arrays(self, feeds: Feeds) -> list[OpaqueArray]:
        wrong = next((str(n) for n in feeds if n not in self._names), None)
        missing = next((n for n in self._names if n not in feeds), None)
        if wrong is not None or missing is not None:
            raise UserError(
                f"{missing}: missing" if wrong is None else f"{wrong}: is kept by the state, or no input",
                hint=f"a run takes {', '.join(self._names) or 'nothing else'}",
            )
        specs = self._sizes.inputs
        return [_typed(feeds[name], specs[i]) for i, name in zip(self._fed, self._names, strict=True)]

    def _sized_for(self, arrays: list[OpaqueArray]) -> Sized:
        """What follows from the sizes of these feeds and of what is kept."""
        self._check_length()
        values: dict[str, int] = {}
        for name, place in self._where.items():
            if place is not None:
                values[name] = arrays[place[0]].shape[place[1]]
            elif name in self._values:
                values[name] = self._values[name]
            else:
                raise UserError(f"the size of {name} is not known", hint="start with arrays that have it")
        shapes = {i: a.shape for i, a in zip(self._fed, arrays, strict=True)}
        return self._sizes.at(values, {**shapes, **self._shapes})

    def _check_length(self) -> None:
        for dim in self._ends:
            n = self._values[dim.name]
            if n > dim.most:
                raise OutOfRange(
                    f"the state is full: {dim.name} is {n}, and the program is made for {dim}",
                    hint=Hint(
                        f"load the model with a wider range: dims={{{dim.name!r}: ({dim.least}, …)}}; or drop what is "
                        "old: session.state(window=…)",
                        command=f"give a wider range: --dim {dim.name}={dim.least}..MOST",
                    ),
                )
            if n < dim.least:
                raise OutOfRange(
                    f"the state is empty: {dim.name} is {n}, and the program is made for {dim}",
                    hint=Hint(
                        f"load the model with dims={{{dim.name!r}: (0, {dim.most})}}, or start with arrays",
                        command=f"give a range from nothing: --dim {dim.name}=0..{dim.most}",
                    ),
                )


def _typed(value: ArrayLike, spec: TensorSpec) -> OpaqueArray:
    array = as_array(value, dtype_of(spec))
    if isinstance(array, str):
        raise UserError(f"{spec.name}: {array}")
    if array.dtype != dtype_of(spec) or array.ndim != len(spec.shape):
        raise UserError(
            f"{spec.name}: is {array.dtype}{list(array.shape)}, should be {spec.dtype} of {len(spec.shape)} dimensions"
        )
    return array


def _check_room(spec: TensorSpec, shape: Sequence[int]) -> None:
    if any(n > most for n, most in zip(shape, spec.shape, strict=True)):
        raise OutOfRange(
            f"{spec.name} is {list(shape)}, and the program is made for at most {list(spec.shape)}",
            hint="load the model with a wider range of its open dimensions",
        )


def _whole_of(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(map(slice, shape))


def _zeros(spec: TensorSpec) -> OpaqueArray:
    """An array of the capacity. Pages of it that are never used cost nothing."""
    region = MemoryRegion(nbytes_of(spec), zeroed=False)
    return region.array[: nbytes_of(spec)].view(dtype_of(spec)).reshape(spec.shape)


def _named(spec: TensorSpec) -> tuple[tuple[int, str], ...]:
    """Its axes that have the size of a dimension, with its name."""
    found = ((d, _whole(size)) for d, size in enumerate(spec.sizes))
    return tuple((d, name) for d, name in found if name is not None)


def _whole(size: SizeExpr | None) -> str | None:
    """The dimension that this is the size of."""
    if size is None or len(size.terms) != 1:
        return None
    ((atoms, factor),) = size.terms
    if len(atoms) == 1 and isinstance(atoms[0], DimUnits) and factor == atoms[0].dim.multiple:
        return atoms[0].dim.name
    return None
