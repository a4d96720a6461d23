"""From LLVM IR text to a relocatable object, through llvmlite.

SROA and code generation level 2 are all that runs: the emitter has hoisted and shared what can be, and LLVM's
vectorisers and unroller would only undo decisions of the schedule.
"""

import re
from functools import lru_cache

import llvmlite.binding as llvm

from tilewright.target.target import HOST, SVE_256, Target

LLVM_VERSION = ".".join(map(str, llvm.llvm_version_info))


# What LLVM may use beside the features of a target that has AVX2: x86-64-v3, as a whole.
_V3 = frozenset(
    {"64bit", "cmov", "cx8", "cx16", "fxsr", "mmx", "sahf", "sse", "sse2"}
    | {"crc32", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"}
    | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
)


def host_cpu() -> str:
    """LLVM's name of the processor that we are on; "generic" if it does not know it."""
    return llvm.get_host_cpu_name() or "generic"


@lru_cache(maxsize=8)
def _machine(target: Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for the inline assembly of the driver
    cpu, features = target.cpu, [f"+{f}" for f in sorted(target.features - {SVE_256})]
    if cpu.startswith(HOST):
        cpu = host_cpu()
    if cpu != "generic" and target.triple.startswith("x86_64"):
        # A name brings all features of the processor along (SSE4a of a Zen, say), which a program must not need: only
        # its scheduling counts.
        foreign = llvm.get_host_cpu_features().keys() - _V3 - target.features
        # Schedules are for the widest vectors; LLVM would halve them on processors that clock down.
        features = [*(f"-{f}" for f in sorted(foreign)), *features, "-prefer-256-bit"]
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=cpu, features=",".join(features), opt=2, reloc="pic", codemodel="small"
    )


def _optimised(ir: str, target: Target) -> llvm.ModuleRef:
    if SVE_256 in target.features:  # vectors of a fixed length are those of the machine then
        ir = re.sub(r"^(define .*) \{$", r"\1 vscale_range(2,2) {", ir, flags=re.MULTILINE)
    module = llvm.parse_assembly(ir)
    module.verify()
    machine = _machine(target)
    options = llvm.create_pipeline_tuning_options(speed_level=0)
    builder = llvm.create_pass_builder(machine, options)
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.run(module, builder)
    return module


def compile_object(ir: str, target: Target) -> bytes:
    """A position-independent ELF object."""
    return _machine(target).emit_object(_optimised(ir, target))


def compile_assembly(ir: str, target: Target) -> str:
    """The same code as text, for people and for the tests that audit it."""
    return _machine(target).emit_assembly(_optimised(ir, target))
