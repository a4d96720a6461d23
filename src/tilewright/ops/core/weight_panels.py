"""Weights of 4 and 8 bits with scales by blocks, as kernels read them: in panels of columns, one for each lane of a
vector.

    codes of a panel     u8 or i8 [blocks, …, lanes, 4]      for instructions that add up four bytes in a lane
                         u8 [blocks, …, lanes]               for floats
    scales, zero points  [blocks, lanes]

Two codes of 4 bits share a byte. For instructions, eight codes that follow each other fill four bytes: the first four
are low halves. For floats, neighbours share one. What is missing in the last panel is 0.
"""

from dataclasses import dataclass

import numpy as np

from tilewright.support.arrays import Array

WORD = 4  # bytes that an instruction adds up in a lane; given


@dataclass(frozen=True, slots=True)
class Panels:
    """How codes of `bits` bits lie in panels of `lanes` columns. In words, for instructions that sum up integers, or
    byte by byte.
    """

    bits: int
    lanes: int
    in_words: bool

    @property
    def each(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits

    @property
    def group(self) -> int:
        """Codes of a column that lie side by side."""
        return self.each * (WORD if self.in_words else 1)

    def count(self, columns: int) -> int:
        return -(-columns // self.lanes)

    def shape(self, columns: int, blocks: int, block: int) -> tuple[int, ...]:
        word = (WORD,) if self.in_words else ()
        return (self.count(columns), blocks, block // self.group, self.lanes, *word)

    def pack(self, codes: Array) -> Array:
        """From [columns, blocks, block]."""
        groups = codes.reshape(*codes.shape[:-1], -1, self.each, self.group // self.each)
        bytes_ = groups[..., 0, :]
        if self.each > 1:
            bytes_ = bytes_.astype(np.uint8) | groups[..., 1, :].astype(np.uint8) << self.bits
        words = self.pack_each(bytes_)
        return words if self.in_words else words[..., 0]

    def pack_each(self, values: Array) -> Array:
        """From [columns, blocks, …] to [panels, blocks, …, lanes], in front of a word if there is one."""
        columns, axes = values.shape[0], range(2, values.ndim)
        missing = self.count(columns) * self.lanes - columns
        whole = np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])
        parts = whole.reshape(-1, self.lanes, *values.shape[1:])
        rest = [d + 1 for d in axes]
        order = (0, 2, *rest[:1], 1, *rest[1:])
        return np.ascontiguousarray(parts.transpose(order))

    def unpack(self, panels: Array, columns: int) -> Array:
        """What `pack` packed: [columns, blocks, block]."""
        words = panels if self.in_words else panels[..., None]
        words = words.transpose(0, 3, 1, 2, 4).reshape(-1, *words.shape[1:3], words.shape[4])[:columns]
        if self.each > 1:
            shifts = np.arange(0, 8, self.bits, dtype=np.uint8)[:, None]
            words = words[..., None, :] >> shifts & np.uint8((1 << self.bits) - 1)
        return np.asarray(words.reshape(*words.shape[:2], -1))

    def unpack_each(self, panels: Array, columns: int) -> Array:
        """Scales or zero points: [columns, blocks]."""
        return np.asarray(panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])[:columns])
