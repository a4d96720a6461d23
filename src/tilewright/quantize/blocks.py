"""Weights in few bits: rows in blocks that share a scale, as com.microsoft.MatMulNBits and GatherBlockQuantized
have them.

    w ≈ (c - 2^(bits - 1)) · s        codes c of `bits` bits, a scale s for each block

Blocks are divided so that the element of largest magnitude gets the lowest code, which has no counterpart, or one
nearer to 0; the scale is then the one that fits the codes best, by least squares. Of these divisions each block
takes the best.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Blocks(NamedTuple):
    """Codes [rows, columns · bits / 8] packed into bytes, the first of a byte in its low bits; scales [rows,
    blocks]."""

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]


def quantize_rows(rows: NDArray[np.float32], bits: int, block: int) -> Blocks:
    """`rows` [n, k] in blocks of `block`; k must be a multiple of it."""
    n, k = rows.shape
    middle = 1 << (bits - 1)
    x = rows.reshape(-1, block)
    low, high = x.min(1), x.max(1)
    largest = high.copy()
    np.copyto(largest, low, where=-low > high)
    is_some = np.abs(largest) > np.finfo(np.float32).tiny * middle
    inverse = np.divide(np.float32(-1), largest, out=np.zeros_like(largest), where=is_some)
    codes = np.zeros_like(x)
    scales, best = np.zeros_like(largest), np.full_like(largest, -1)
    for reach in (middle, middle - 0.5, middle - 1.0):
        tried = np.rint(x * (inverse * np.float32(reach))[:, None])
        np.clip(tried, -middle, middle - 1, out=tried)
        above, below = np.einsum("nb,nb->n", x, tried), np.einsum("nb,nb->n", tried, tried)
        own = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        gained = own * above  # by how much the squares of x sum up to more than those of what is left
        is_better = gained > best
        codes[is_better], scales[is_better], best[is_better] = (a[is_better] for a in (tried, own, gained))
    whole: NDArray[np.uint8] = (codes + np.float32(middle)).astype(np.uint8).reshape(n, k)
    packed = whole if bits == 8 else np.bitwise_or(whole[:, 0::2], np.left_shift(whole[:, 1::2], np.uint8(4)))
    return Blocks(packed, scales.reshape(n, k // block))


def restored_rows(blocks: Blocks, bits: int) -> NDArray[np.float32]:
    """What the codes stand for."""
    codes, scales = blocks
    whole = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1) if bits == 4 else codes
    middle = np.float32(1 << (bits - 1))
    own = (whole.astype(np.float32) - middle).reshape(*scales.shape, -1)
    return np.asarray(own * scales[..., None]).reshape(len(codes), -1)
