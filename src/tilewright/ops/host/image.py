"""ImageDecoder: the pixels of a compressed image, by Pillow, which is an optional extra."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.errors import UserError

_FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # those that ONNX names
_MOST_PIXELS = 1 << 27


@dataclass(frozen=True, slots=True)
class ImageDecoder(HostOp):
    """The bytes of a file to [height, width, channel]."""

    onnx = ("ImageDecoder",)
    why = "what is in the file says how large the image is"
    pixels: str

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        pixels = node.text("pixel_format", "RGB")
        if pixels not in ("RGB", "BGR", "Grayscale"):
            raise UserError(f"ImageDecoder: unknown pixel_format '{pixels}'")
        return cls(pixels)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        try:
            from PIL import Image  # noqa: PLC0415  # an optional extra
        except ImportError as e:
            raise UserError("ImageDecoder needs Pillow", hint="pip install 'tilewright[image]'") from e
        encoded = tensor(inputs[0], "the file")
        if encoded.dtype != np.uint8:
            raise UserError(f"ImageDecoder: the file is {encoded.dtype}, not bytes")
        try:
            with Image.open(io.BytesIO(encoded.tobytes()), formats=_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise UserError(f"an image of {image.width} by {image.height} pixels is too large")
                values = np.array(image.convert("L" if self.pixels == "Grayscale" else "RGB"))
        except (OSError, SyntaxError) as e:  # what Pillow raises for files that are broken
            raise UserError(f"ImageDecoder: this is not an image of a known format ({e})") from e
        if self.pixels == "Grayscale":
            return (values[:, :, None],)
        return (np.ascontiguousarray(values[:, :, ::-1]) if self.pixels == "BGR" else values,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        colours = bytes(range(0, 180, 10))
        file = np.frombuffer(b"P6 3 2 255\n" + colours, np.uint8)
        for pixels in ("RGB", "BGR", "Grayscale"):
            yield HostSample("ImageDecoder", (file,), {"pixel_format": pixels}, opset=20)
