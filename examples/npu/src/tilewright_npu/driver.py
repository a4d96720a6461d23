"""The driver: puts a program into the machine's memory, with the constants it asks for, and runs it."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright_npu.constants import Array
from tilewright_npu.emulator import Emulator
from tilewright_npu.image import Image
from tilewright_npu.machine import Machine
from tilewright_npu.report import Report, note_report


class Loaded:
    """An image in the machine's memory. `report` is of the last run."""

    def __init__(self, image: Image, constants: Mapping[str, Array], machine: Machine) -> None:
        self._image, self._machine = image, machine
        self._dram = np.zeros(image.dram, np.uint8)
        for layer in image.layers:
            layer.write(self._dram, constants)
        self._lock = threading.Lock()  # there is one machine
        self.report: Report | None = None

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with self._lock:
            for at, array in zip(self._image.inputs, inputs, strict=True):
                np.ndarray(array.shape, array.dtype, self._dram, at)[...] = array
            timeline = Emulator(self._machine, self._dram).run(self._image.code)
            for at, array in zip(self._image.outputs, outputs, strict=True):
                array[...] = np.ndarray(array.shape, array.dtype, self._dram, at)
            self.report = Report.of(self._image.name, timeline, len(self._image.code))
        note_report(self.report)
