"""The ranges of activations, from values that they had on samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, ValueInfoProto

from tilewright.quantize.layers import Layer, LayerKind
from tilewright.quantize.session import InputSample, LoadModel
from tilewright.support.arrays import Array

_STEPS = 255
_BINS = 4096
_REACHES = np.linspace(1.0, 0.5, 51)  # of the range that was seen: what is beyond is clipped


@dataclass(frozen=True, slots=True)
class ByteScale:
    """Bytes q stand for (q - zero) · step."""

    step: np.float32
    zero: int

    @classmethod
    def of(cls, low: float, high: float) -> "ByteScale":
        """For values between these; 0 is one of them, exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        step = np.float32(max((high - low) / _STEPS, float(np.finfo(np.float32).tiny)))
        return cls(step, int(np.clip(np.rint(-low / step), 0, _STEPS)))

    def restored(self, x: Array) -> Array:
        """Values after they have been bytes."""
        codes = np.clip(np.rint(x / self.step) + self.zero, 0, _STEPS)
        return (codes - self.zero) * self.step


class Observer:
    """What is seen of one tensor: a histogram of its values, and the mean of each channel."""

    def __init__(self, channel: int) -> None:
        self._channel = channel  # its axis
        self._counts = np.zeros(_BINS)
        self._low, self._high = 0.0, 0.0
        self._means: list[Array] = []

    def see(self, values: Array) -> None:
        """Numbers that are not finite are passed over."""
        x = values.ravel()
        x = x[np.isfinite(x)]
        if not x.size:
            return
        low, high = min(float(x.min()), self._low), max(float(x.max()), self._high)
        if (low, high) != (self._low, self._high):
            centres, counts = self._centres(), self._counts
            self._counts = np.histogram(centres, _BINS, (low, high), weights=counts)[0]
            self._low, self._high = low, high
        if low < high:
            self._counts = self._counts + np.histogram(x, _BINS, (low, high))[0]
        others = tuple(i for i in range(values.ndim) if i != self._channel % values.ndim)
        is_finite = np.isfinite(values)
        self._means.append(np.where(is_finite, values, 0).mean(axis=others, dtype=np.float64))

    @property
    def mean(self) -> Array:
        return np.mean(self._means, axis=0)

    def _centres(self) -> Array:
        edges = np.linspace(self._low, self._high, _BINS + 1)
        return (edges[1:] + edges[:-1]) / 2

    def scale(self) -> ByteScale:
        """The one that leaves the least squares: ends of the range are looked for one after the other, twice."""
        centres = self._centres()

        def left(scale: ByteScale) -> float:
            return float(np.dot(np.square(scale.restored(centres) - centres), self._counts))

        low, high = self._low, self._high
        for _ in range(2):
            high = min((self._high * r for r in _REACHES), key=lambda n: left(ByteScale.of(low, n)))
            low = min((self._low * r for r in _REACHES), key=lambda n: left(ByteScale.of(n, high)))
        return ByteScale.of(low, high)


def observe(
    model: ModelProto,
    layers: Sequence[Layer],
    samples: Sequence[InputSample],
    load: LoadModel,
) -> tuple[dict[str, ByteScale], dict[str, Array]]:
    """Run the model on samples, and look at what its layers read: scales of tensors, and means of their channels."""
    seen = {layer.reads: Observer(1 if layer.kind is LayerKind.CONV else -1) for layer in layers}
    watched = ModelProto()
    watched.CopyFrom(model)
    known = {o.name for o in model.graph.output} | {i.name for i in model.graph.input}
    watched.graph.output.extend(ValueInfoProto(name=n) for n in seen if n not in known)
    with load(watched) as session:
        for sample in samples:
            values = {**sample, **session.run(sample)}
            for name, observer in seen.items():
                observer.see(np.asarray(values[name]))
    return {n: o.scale() for n, o in seen.items()}, {n: o.mean for n, o in seen.items()}
