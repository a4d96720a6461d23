"""Accesses of a buffer: their number is that of those that are found one by one."""

import pytest
from schedule_programs import PROGRAMS

from tilewright.search.default import schedule_func
from tilewright.target.target import AVX2
from tilewright.tir.analysis.independence import count_accesses, ordered_accesses


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_many_are_counted_as_are_found(name: str) -> None:
    func = PROGRAMS[name]
    for program in (func, schedule_func(func, AVX2).func):
        for buffer in (*program.params, *program.locals):
            assert count_accesses(program.body, buffer) == len(ordered_accesses(program.body, buffer))
