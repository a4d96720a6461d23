"""Tilewright: a tensor compiler in which graph, layouts, loops and tensor instructions are chosen together.

What is named here is imported when it is first asked for. A machine that only runs compiled programs needs neither
LLVM nor onnx; a program that was compiled before is loaded without the compiler; and a process that only compiles IR
(`tilewright.driver.worker`) is ready without either.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.support.errors import InternalError, ScheduleError, TilewrightError, UserError
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.api import load
    from tilewright.build import Executable, Timing, build, interpret
    from tilewright.compiler import CompiledModel, compile
    from tilewright.dynamo.exported import TorchSession, from_torch
    from tilewright.families.tensor.tensorize import auto_tensorize
    from tilewright.ir.expr import Scope
    from tilewright.ir.layout import Layout
    from tilewright.quantize.quantized_model import quantize
    from tilewright.runtime.session import Bound, Session
    from tilewright.schedule.schedule import Schedule
    from tilewright.tir.func import Func, Module
    from tilewright.tir.script import func
    from tilewright.tir.words import abs_ as abs
    from tilewright.tir.words import (
        alloc,
        bf16,
        bitcast,
        block,
        cast,
        ceil,
        cos,
        erf,
        exp,
        exp_nonpositive,
        f16,
        f32,
        f64,
        floor,
        fma,
        gelu_erf,
        grid,
        i8,
        i16,
        i32,
        i64,
        init,
        log,
        out,
        parallel,
        reads,
        reduce,
        rsqrt,
        select,
        sigmoid,
        sin,
        spatial,
        sqrt,
        tanh,
        trunc,
        u8,
        u16,
        u32,
        u64,
        unrolled,
        vectorized,
        where,
        writes,
    )
    from tilewright.tir.words import bool_ as bool
    from tilewright.tir.words import max_ as max
    from tilewright.tir.words import min_ as min
    from tilewright.tir.words import pow_ as pow
    from tilewright.tir.words import round_ as round
    from tilewright.tuning.tune import tune
    from tilewright.tuning.tune_result import TuneResult

__all__ = [
    "Bound",
    "CompiledModel",
    "Executable",
    "Func",
    "InternalError",
    "Layout",
    "Module",
    "Schedule",
    "ScheduleError",
    "Scope",
    "Session",
    "TilewrightError",
    "Timing",
    "TorchSession",
    "TuneResult",
    "UserError",
    "__version__",
    "abs",
    "alloc",
    "auto_tensorize",
    "bf16",
    "bitcast",
    "block",
    "bool",
    "build",
    "cast",
    "ceil",
    "compile",
    "cos",
    "erf",
    "exp",
    "exp_nonpositive",
    "f16",
    "f32",
    "f64",
    "floor",
    "fma",
    "from_torch",
    "func",
    "gelu_erf",
    "grid",
    "i8",
    "i16",
    "i32",
    "i64",
    "init",
    "interpret",
    "load",
    "log",
    "max",
    "min",
    "out",
    "parallel",
    "pow",
    "quantize",
    "reads",
    "reduce",
    "round",
    "rsqrt",
    "select",
    "sigmoid",
    "sin",
    "spatial",
    "sqrt",
    "tanh",
    "trunc",
    "tune",
    "u8",
    "u16",
    "u32",
    "u64",
    "unrolled",
    "vectorized",
    "where",
    "writes",
]

_HOMES = {
    "Bound": "tilewright.runtime.session",
    "CompiledModel": "tilewright.compiler",
    "Executable": "tilewright.build",
    "Func": "tilewright.tir.func",
    "Layout": "tilewright.ir.layout",
    "Module": "tilewright.tir.func",
    "Schedule": "tilewright.schedule.schedule",
    "Scope": "tilewright.ir.expr",
    "Session": "tilewright.runtime.session",
    "Timing": "tilewright.build",
    "TorchSession": "tilewright.dynamo.exported",
    "auto_tensorize": "tilewright.families.tensor.tensorize",
    "TuneResult": "tilewright.tuning.tune",
    "build": "tilewright.build",
    "compile": "tilewright.compiler",
    "from_torch": "tilewright.dynamo.exported",
    "func": "tilewright.tir.script",
    "interpret": "tilewright.build",
    "load": "tilewright.api",
    "quantize": "tilewright.quantize.quantized_model",
    "tune": "tilewright.tuning.tune",
}
_WORDS = "tilewright.tir.words"  # all others


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES.get(name, _WORDS))
    # Words that are called like a function of Python have another name at home.
    found = globals()[name] = getattr(home, name) if hasattr(home, name) else getattr(home, f"{name}_")
    return found


class _Package(ModuleType):
    """`tilewright.build` is the function also when the module of that name has been imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
