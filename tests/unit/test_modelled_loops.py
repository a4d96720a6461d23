"""Finding and modelling inner loops of assembly, as `benchmarks.modelled_intrinsics` does."""

import re

import pytest

from benchmarks.modelled_intrinsics import KERNELS, PROCESSORS, Processor, assembly_of
from benchmarks.modelled_loops import find_tool, model, product_loop, products_of
from tilewright.support.errors import UserError

X86 = """
f:
	movq	%rdi, %rax	# a comment
.LBB0_1:
	addq	$1, %rax
	jne	.LBB0_1
.LBB0_2:                                # =>This Inner Loop
	vpbroadcastd	(%rax), %ymm1
	{vex}	vpdpbusd	%ymm2, %ymm1, %ymm0
	vpmaddwd	%zmm2, %zmm1, %zmm3
	incq	%rax
	jne	.LBB0_2
	ret
"""
ARM = """
.LBB0_1:
	ldr	q1, [x0, #16]
	smmla	v0.4s, v1.16b, v2.16b
	usdot	z0.s, z1.b, z2.b
	b.lo	.LBB0_1
"""


def test_the_loop_with_the_most_products_is_found() -> None:
    loop = product_loop(X86)
    assert [line.split()[0] for line in loop] == ["vpbroadcastd", "{vex}", "vpmaddwd", "incq", "jne"]
    assert products_of(loop) == [0, 32, 32, 0, 0]
    assert products_of(product_loop(ARM)) == [0, 32, 32, 0]
    assert len(product_loop("f:\n\tnop\n\tret\n")) == 2


def test_sums_of_pairs_are_no_products() -> None:
    pairs = ["\tvpmaddubsw\t%ymm1, %ymm2, %ymm3", "\tvpmaddwd\t%ymm3, %ymm4, %ymm5"]
    assert products_of(pairs) == [32, 0]
    assert products_of(pairs[1:]) == [16]


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda p: p.name)
def test_loops_of_bytes_keep_ports_busy(processor: Processor) -> None:
    """Where products of bytes are one instruction, little is beside them."""
    p = processor
    if p.name.startswith(("AVX2", "AMX")) or "Zen" in p.name:
        pytest.skip("widened bytes, or a model that does not know the throughput")
    try:
        tool = find_tool()
    except UserError as e:
        pytest.skip(e.message)
    loop = product_loop(assembly_of(KERNELS["bytes, s8·s8"](p.target), p.target))
    assert "sp" not in re.findall(r"\w+", "\n".join(loop))
    assert model(tool, loop, p.target, p.cpu).of_products > 0.75
