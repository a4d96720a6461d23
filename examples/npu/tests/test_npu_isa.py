"""Instructions as bytes and as text."""

import random

import numpy as np
import pytest

from tilewright_npu.image import Image, ImageError
from tilewright_npu.isa import (
    OPERATIONS,
    SIZE,
    Fill,
    Instruction,
    IsaError,
    Load,
    Matmul,
    Scale,
    assemble,
    decode,
    disassemble,
    encode,
)

_LARGEST = {"I": 2**32 - 1, "H": 2**16 - 1, "B": 255, "b": 127}


def any_of(kind: type[Instruction], rng: random.Random) -> Instruction:
    values = [
        float(np.float32(rng.random())) if letter == "f" else rng.randrange(_LARGEST[letter] + 1)
        for letter in kind.layout
    ]
    return kind(*values)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda k: k.__name__)
def test_bytes_and_text_are_read_as_they_were_written(kind: type[Instruction]) -> None:
    rng = random.Random(kind.code)
    code = [any_of(kind, rng) for _ in range(20)] + [kind()]
    data = encode(code)
    assert len(data) == SIZE * len(code)
    assert decode(data) == code
    assert assemble(disassemble(code)) == code


def test_every_operation_has_its_own_number_and_fits() -> None:
    assert len({k.code for k in OPERATIONS}) == len(OPERATIONS)
    assert all(len(encode([k()])) == SIZE for k in OPERATIONS)


def test_text_may_have_comments_and_empty_lines() -> None:
    assert assemble("# nothing\n\nFILL at=64 bytes=16 value=-3  # padding\n") == [Fill(64, 16, -3)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("JUMP at=1", "line 1: there is no operation JUMP"),
        ("\nFILL where=1", "line 2: .*where"),
        ("FILL at=x", "line 1: .*'x'"),
    ],
)
def test_text_that_is_no_program(text: str, why: str) -> None:
    with pytest.raises(IsaError, match=why):
        assemble(text)


def test_bytes_that_are_no_program() -> None:
    with pytest.raises(IsaError, match="33 bytes"):
        decode(bytes(33))
    with pytest.raises(IsaError, match="instruction 1: there is no operation 0"):
        decode(encode([Scale(1.0)]) + bytes(SIZE))


def test_a_field_that_does_not_fit_is_told() -> None:
    with pytest.raises(IsaError, match=r"MATMUL.*depth=70000"):
        encode([Matmul(depth=70000)])


def test_an_image_is_read_as_it_was_written() -> None:
    image = Image("npu:0", 640, (0,), (64, 128), (), (Load(dram=3, wide=1), Scale(0.5, -3)))
    data = image.to_bytes()
    assert Image.from_bytes(data) == image
    with pytest.raises(ImageError, match="no program"):
        Image.from_bytes(b"ELF" + data)
    with pytest.raises(ImageError, match="version 7"):
        Image.from_bytes(data[:4] + b"\7" + data[5:])
    with pytest.raises(ImageError, match="are announced"):
        Image.from_bytes(data[:-1])
