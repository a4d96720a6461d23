"""A compiled program as plain data: what the compiler hands to the runtime, and what a `.tw` file holds.

No code runs here. Native code takes buffers through *slots*: an argument of a kernel call is an input, an output,
a constant or a place in the arena.

The calling convention of a kernel is `void kernel(void **args, int64_t part)`: one pointer per argument, and the
part of the work to do (0 … parts-1). Any worker may run any part, and parts of one call may run at the same time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.support.indices import IndexCheck
from tilewright.support.program import ProgramTree, leaves, map_program
from tilewright.support.sizes import Dim, Guard, SizeExpr, SymInt

FORMAT_VERSION = 11
SIZE_INPUT = "size__"  # how the names of the inputs begin that are sizes of open dimensions, in multiples


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: `dtype` is numpy's name of it (or ml_dtypes'). `shape` is as large as it may be; where
    dimensions are open, `sizes` has for each of them what is in use (None: all of it).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[SizeExpr | None, ...] = ()

    @property
    def extents(self) -> tuple[int, ...]:
        """Its shape as numbers that know their sizes."""
        sizes = self.sizes or (None,) * len(self.shape)
        return tuple(n if s is None else SymInt(s) for n, s in zip(self.shape, sizes, strict=True))

    def shape_at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape where the open dimensions have these sizes."""
        if not self.sizes:
            return self.shape
        return tuple(
            n if s is None else s.evaluate(sizes) for n, s in zip(self.shape, self.sizes, strict=True)
        )


@unique
class Place(Enum):
    INPUT = "input"  # at: index into the program's inputs
    OUTPUT = "output"  # at: index into its outputs
    CONSTANT = "constant"  # at: index into its constants
    ARENA = "arena"  # at: byte offset, a multiple of 64


@dataclass(frozen=True, slots=True)
class Slot:
    place: Place
    at: int


SizeBox: TypeAlias = tuple[tuple[str, int], ...]  # open dimensions, and how large each may be at most
SizeChoice: TypeAlias = frozenset[
    SizeBox
]  # of the boxes that a program mentions, those that sizes are within


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run all parts of a kernel; every worker meets at a barrier afterwards if `barrier`.

    If there are several `steps`, the parts are those of the first, then as many of the second, …: parts of a step may
    run at the same time, and all of them are over before the next begins.

    A call `beside` the one before it, of one part as that is, has nothing to do with it: any worker may run each of the
    two, as if they were parts of one kernel.

    Where dimensions are open, only the first parts may have something to do: as many as the largest of `in_use` says.
    To run the others is no fault.

    A call may have others in its place where sizes are small: it is made `only` where they are within a box, if there
    is one, and not where they are within one of `unless`.
    """

    kernel: str  # symbol
    parts: int
    args: tuple[Slot, ...]
    barrier: bool = True
    steps: int = 1
    beside: bool = False
    in_use: tuple[SizeExpr, ...] = ()
    only: SizeBox = ()
    unless: tuple[SizeBox, ...] = ()

    @property
    def is_optional(self) -> bool:
        return bool(self.only or self.unless)

    def is_made(self, choice: SizeChoice) -> bool:
        return (not self.only or self.only in choice) and choice.isdisjoint(self.unless)

    def parts_at(self, sizes: Mapping[str, int]) -> int:
        """The parts to run where the open dimensions have these sizes."""
        if not self.in_use:
            return self.parts
        return min(self.parts, max(1, *(e.evaluate(sizes) for e in self.in_use)))


@dataclass(frozen=True, slots=True)
class Segment:
    """Kernel calls that run one after the other without Python in between."""

    calls: tuple[KernelCall, ...]

    def calls_at(self, choice: SizeChoice) -> list[tuple[int, KernelCall]]:
        """Those that are made, with their numbers. Workers meet before a call if they would have after one that is not
        made.
        """
        made: list[tuple[int, KernelCall]] = []
        for n, call in enumerate(self.calls):
            if call.is_made(choice):
                made.append((n, call))
            elif call.barrier and made:
                last, before = made[-1]
                made[-1] = last, replace(before, barrier=True)
        return made


def boxes_of(calls: Iterable[KernelCall]) -> tuple[SizeBox, ...]:
    """All boxes on which depends which calls are made."""
    found = {box for c in calls for box in (*((c.only,) if c.only else ()), *c.unless)}
    return tuple(sorted(found))


def choice_at(boxes: Iterable[SizeBox], sizes: Mapping[str, int]) -> SizeChoice:
    """The boxes that these sizes are within."""
    return frozenset(box for box in boxes if all(sizes[name] <= most for name, most in box))


ExternalCode: TypeAlias = Callable[[tuple[NDArray[np.generic], ...], tuple[NDArray[np.generic], ...]], None]
"""Code outside the compiler: called with inputs (read-only) and outputs, it fills the outputs in place. The arrays are
views of the program's memory and must not be kept after the call."""

SizedCode: TypeAlias = Callable[
    [tuple[NDArray[np.generic], ...], tuple[NDArray[np.generic], ...], Mapping[str, int]], None
]
"""The same in a program with open dimensions, whose sizes come last. The arrays are as large as these say, and
contiguous: what does not lie so in the program's memory is copied, before the call and after it."""


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """Python code outside the compiler: `key` names it in the table of `ExternalCode`s given at load time."""

    key: str
    inputs: tuple[tuple[Slot, TensorSpec], ...]
    outputs: tuple[tuple[Slot, TensorSpec], ...]


ArtifactProgram: TypeAlias = ProgramTree[Segment | ExternalCall, Slot]


def program_at(program: ArtifactProgram, sizes: Mapping[str, int]) -> ArtifactProgram:
    """What is called where the open dimensions have these sizes."""
    choice = choice_at(boxes_of(c for s in leaves(program) if isinstance(s, Segment) for c in s.calls), sizes)

    def chosen(run: list[Segment | ExternalCall]) -> Iterable[Segment | ExternalCall]:
        for step in run:
            if isinstance(step, Segment):
                made = [replace(c, parts=c.parts_at(sizes)) for _, c in step.calls_at(choice)]
                yield Segment(tuple(replace(c, in_use=(), only=(), unless=()) for c in made))
            else:
                yield step

    return map_program(program, chosen, lambda cond: cond)


@dataclass(frozen=True, slots=True)
class RegionCode:
    """A part of the program that a plugin compiled: `key` is that of its external call, `blob` is for the plugin alone.

    `model` is the region as an ONNX model without its weights, from which native code can be made if the plugin fails;
    empty if native code does not know all of its operators. `constants` are those that the region uses, by name: where
    they are in the artifact. `last`: inputs and outputs have their channels last, other than in the model.
    """

    key: str
    plugin: str
    version: str
    blob: bytes
    model: bytes
    constants: tuple[tuple[str, int], ...]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where a program comes from and what it needs."""

    format_version: int
    compiler_version: str
    llvm_version: str
    options: dict[str, str]
    model_digest: str
    triple: str
    features: tuple[str, ...]  # the ISA floor: every one must exist where it runs
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    checks: tuple[IndexCheck, ...] = ()  # of what it writes besides, for the runtime to examine
    dims: tuple[Dim, ...] = ()  # those that are open; their sizes are the last inputs, in this order
    guards: tuple[Guard, ...] = ()  # what sizes must keep besides their ranges
    # inputs, each with the output that begins with it and in whose memory it has to be: no kernel reads the input
    in_place: tuple[tuple[int, int], ...] = ()
    states: tuple[tuple[int, int], ...] = ()  # inputs, each with the output that it is in the next run

    @property
    def given(self) -> tuple[TensorSpec, ...]:
        """The inputs but for sizes of open dimensions: what a user gives."""
        return tuple(s for s in self.inputs if not (self.dims and s.name.startswith(SIZE_INPUT)))

    def fits(self, sizes: Mapping[str, int], whole: "Manifest") -> bool:
        """Is the program made for these sizes of the dimensions that are open in the `whole`?"""
        wanted = [s.shape_at(sizes) for s in whole.given]
        return (
            all(d.allows(sizes[d.name]) for d in self.dims)
            and [s.shape_at(sizes) for s in self.given] == wanted
            and all(g.holds(sizes) for g in self.guards)
        )

    @property
    def written(self) -> tuple[TensorSpec, ...]:
        """All that the program writes: the outputs, and for each check the least and the greatest index."""
        return (*self.outputs, *(TensorSpec("", c.dtype, c.shape) for c in self.checks for _ in range(2)))


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """`objects` are relocatable ELF files that together define every kernel symbol and leave none undefined.

    `driver` is the object of `codegen.driver`. It stands apart because programs of one process that have the same
    driver share one team of threads.

    `digests` has for each constant the SHA-256 of its bytes, or nothing if it is small; it is empty if nobody took them
    yet. Programs with the same ones share the memory (`runtime.weights`).

    `narrower` are programs of the same model for smaller ranges of its open dimensions, the narrowest first: where
    sizes are within one of them, it runs in place of this. They have the same driver, and no narrower ones themselves.
    """

    manifest: Manifest
    driver: bytes
    objects: tuple[bytes, ...]
    constants: tuple[NDArray[np.generic], ...]
    arena_bytes: int
    program: ArtifactProgram
    regions: tuple[RegionCode, ...] = ()
    digests: tuple[str, ...] = ()
    narrower: "tuple[Artifact, ...]" = ()

    @property
    def weights_bytes(self) -> int:
        """Of the constants of all its programs; large ones that are equal count once."""
        total, large = 0, dict[str, int]()
        for program in (self, *self.narrower):
            digests = program.digests or ("",) * len(program.constants)
            for array, digest in zip(program.constants, digests, strict=True):
                if digest:
                    large[digest] = array.nbytes
                else:
                    total += array.nbytes
        return total + sum(large.values())

    @property
    def code_bytes(self) -> int:
        return sum(len(code) for program in (self, *self.narrower) for code in program.objects)

    def at(self, sizes: Mapping[str, int]) -> "Artifact":
        """The narrowest of its programs that is made for these sizes of the open dimensions; itself if none is."""
        return next((a for a in self.narrower if a.manifest.fits(sizes, self.manifest)), self)
