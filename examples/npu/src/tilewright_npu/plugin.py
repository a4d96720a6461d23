"""The NPU as a plugin of Tilewright: what it takes, how it is calibrated, how long it takes, and how it runs.

It refuses regions without data to calibrate with: `tilewright.load(…, plugins=["npu"], calibration=[…])`. Its time is
that of its cycle model; how long the emulator takes says nothing.
"""

from collections.abc import Mapping, Sequence

from tilewright.graph.external import Answer, Capabilities, Order, Pattern, Plugin, Region, RunRegion, Unit
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright_npu.calibration import Calibrated, calibrated
from tilewright_npu.driver import Loaded
from tilewright_npu.image import Image
from tilewright_npu.layers import patterns, supported
from tilewright_npu.lowering import lower
from tilewright_npu.machine import NPU, Machine
from tilewright_npu.timeline import Timeline


class Npu(Plugin):
    name = "npu"
    version = "1"
    order = Order.CHANNELS_LAST
    # Its DMA reads and writes the program's memory tile by tile: an output may be there before an input is read.
    capabilities = Capabilities(threads=False, dynamic_shapes=False, in_place=False)
    machine: Machine = NPU
    percentile: float = 100.0

    def __init__(self, percentile: float | None = None) -> None:
        """`percentile` of values are not clipped; all by default. A cached program does not know it."""
        if percentile is not None:  # a plugin without state can be made again in the process that compiles
            self.percentile = percentile

    def patterns(self) -> Sequence[Pattern]:
        return patterns(self.machine)

    def supports(self, unit: Unit) -> Answer:
        return supported(unit, self.machine)

    def prepare(self, region: Region, calibration: Sequence[Mapping[str, Array]]) -> Region:
        return calibrated(region, calibration, self.percentile)

    def seconds(self, region: Region, threads: int) -> float | None:
        code = lower(region, None, self.machine).code
        return Timeline(self.machine).play(code) / self.machine.hertz

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        if not isinstance(region, Calibrated) or not region.ranges:
            raise UserError(
                "the NPU computes with int8 and needs data to calibrate with: give calibration=[…]"
            )
        return lower(region, region.ranges, self.machine).to_bytes()

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        return Loaded(Image.from_bytes(blob), constants, self.machine)
