"""Which kernels a model is trained on, and which it is judged by: always kernels of other programs, or of other kinds.

Kernels that several programs have are never on both sides.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.support.errors import UserError
from tilewright.training.samples import KernelSamples

# Networks that are least like the others, by `kind_distances`: those of one design that no other network of the
# corpus has. Written down so that figures of different days are of the same split.
HELD_NETWORKS = ("unet", "yolo", "gpt2", "lstm", "mobilenetv2")
# Kinds that are held out together, by the name of what they have in common.
HELD_KINDS: Mapping[str, tuple[str, ...]] = {
    "windows": ("convolution", "stem", "depthwise", "winograd"),  # convolutions whose windows overlap
    "attention": ("attention",),
}
_HELD_SHARE = 0.2  # of programs, at random; given


@dataclass(frozen=True, slots=True, eq=False)
class SampleSplit:
    name: str
    train: tuple[KernelSamples, ...]
    test: tuple[KernelSamples, ...]


def random_split(samples: Sequence[KernelSamples], seed: int) -> SampleSplit:
    """A fifth of all programs is held out."""
    programs = sorted({s.program for s in samples})
    if len(programs) < 2:
        raise UserError("a corpus of one program cannot be split", hint="add more programs to it")
    order = np.random.default_rng(seed).permutation(len(programs))
    count = max(1, round(_HELD_SHARE * len(programs)))
    return _split("random", samples, held_programs={programs[n] for n in order[:count]})


def manual_split(samples: Sequence[KernelSamples], held: Sequence[str] = HELD_NETWORKS) -> SampleSplit:
    """Programs that are unlike the rest are held out."""
    found = {s.program for s in samples} & set(held)
    return _split("manual", samples, held_programs=found)


def family_splits(
    samples: Sequence[KernelSamples], held: Mapping[str, Sequence[str]] = HELD_KINDS
) -> Iterator[SampleSplit]:
    """All kernels of some kinds are held out. Those that the corpus does not have are passed over."""
    for name, kinds in held.items():
        split = _split(name, samples, held_kinds=set(kinds))
        if split.test:
            yield split


def _split(
    name: str,
    samples: Sequence[KernelSamples],
    held_programs: set[str] | frozenset[str] = frozenset(),
    held_kinds: set[str] | frozenset[str] = frozenset(),
) -> SampleSplit:
    test = tuple(s for s in samples if s.program in held_programs or s.kind in held_kinds)
    keys, held = {s.key for s in test}, set(map(id, test))
    train = tuple(s for s in samples if id(s) not in held and s.key not in keys)
    return SampleSplit(name, train, test)


def kind_distances(samples: Sequence[KernelSamples]) -> dict[str, float]:
    """How unlike the other programs each is: half of the sum of differences between the shares of kinds in its kernels'
    times and in those of all others; 0 for the same mix, 1 for nothing in common.
    """
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    whole: dict[str, float] = defaultdict(float)
    for s in samples:
        times[s.program][s.kind] += float(s.seconds.min())
        whole[s.kind] += float(s.seconds.min())
    return {program: _difference(own, whole) for program, own in sorted(times.items())}


def _difference(own: Mapping[str, float], whole: Mapping[str, float]) -> float:
    mine = sum(own.values())
    rest = max(sum(whole.values()) - mine, 1e-12)
    shares = ((own.get(k, 0.0) / mine, (t - own.get(k, 0.0)) / rest) for k, t in whole.items())
    return 0.5 * sum(abs(a - b) for a, b in shares)
