"""Inner loops of kernels in LLVM's models of processors (llvm-mca): for processors that are not at hand.

A model has ports, latencies and the width of the front end, all of it as LLVM's authors know it. Everything is in the
first-level cache. It is no measurement.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.support.errors import UserError
from tilewright.target.target import SVE_256, Target

_TOOLS = ("llvm-mca", *(f"llvm-mca-{n}" for n in range(25, 16, -1)))
_LEAST = 17  # release that has models of all processors of the page
_ITERATIONS = 200
_COMMENT = re.compile(r"\s(?:##?|//)\s.*$")
_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^\t(?:j\w+|b\.\w+|cbn?z|tbn?z)\t(?:.*,\s*)?(\.L\w+)")

# Products of integers of an instruction for each byte of its registers, by what its name begins with. vpmaddwd is only
# counted where it multiplies, and not where it adds up what vpmaddubsw has multiplied.
_PER_BYTE = {
    "vpdpb": 1.0,
    "vpdpw": 0.5,
    "vpmaddubsw": 1.0,
    "vpmaddwd": 0.5,
    "sdot": 1.0,
    "udot": 1.0,
    "usdot": 1.0,
    "smmla": 2.0,
    "ummla": 2.0,
    "usmmla": 2.0,
}
_SVE_BYTES = 32  # of a register of SVE; given: on targets of ours that have it
_TILE = 16.0 * 16 * 64  # products of tdpbusd on whole registers
_REGISTER_BYTES = {"zmm": 64, "ymm": 32, "xmm": 16, "v": 16, "z": _SVE_BYTES}


@dataclass(frozen=True, slots=True)
class ModelledLoop:
    instructions: int
    products: float  # of an iteration
    cycles: float  # of an iteration
    ports: float  # the least cycles that its ports allow
    product_ports: float  # the same, of the products alone

    @property
    def of_ports(self) -> float:
        return self.ports / self.cycles

    @property
    def of_products(self) -> float:
        return self.product_ports / self.cycles


def find_tool() -> str:
    """The first llvm-mca that is new enough."""
    for name in _TOOLS:
        path = shutil.which(name)
        found = re.search(r"version (\d+)", _run([path, "--version"], "")) if path else None
        if path and found and int(found[1]) >= _LEAST:
            return path
    raise UserError(
        f"there is no llvm-mca of LLVM {_LEAST} or newer", hint="Debian: apt-get install llvm-19 (or newer)"
    )


def product_loop(assembly: str) -> list[str]:
    """The innermost loop with the most products of integers, as lines of assembly; of straight code, all of it."""
    lines = [_COMMENT.sub("", line).rstrip() for line in assembly.splitlines()]
    at: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for n, line in enumerate(lines):
        if label := _LABEL.match(line):
            at[label[1]] = n
        elif (jump := _JUMP.match(line)) and jump[1] in at:
            spans.append((at[jump[1]], n + 1))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    loops = [[x for x in lines[a:b] if _is_instruction(x)] for a, b in inner or [(0, len(lines))]]
    return max(loops, key=lambda loop: sum(products_of(loop)))


def products_of(loop: Sequence[str]) -> list[float]:
    """Of each instruction."""
    names = [_mnemonic(line) for line in loop]
    has_pairs = "vpmaddubsw" in names
    found: list[float] = []
    for name, line in zip(names, loop, strict=True):
        per_byte = next((v for k, v in _PER_BYTE.items() if name.startswith(k)), 0.0)
        if name.startswith("tdpb"):
            found.append(_TILE)
        elif not per_byte or (has_pairs and name == "vpmaddwd"):
            found.append(0.0)
        else:
            register = re.search(r"%([xyz]mm)|\b([vz])\d+\.", line)
            assert register is not None, line
            kind = register[1] or register[2]
            found.append(per_byte * _REGISTER_BYTES[kind])
    return found


def model(tool: str, loop: Sequence[str], target: Target, cpu: str) -> ModelledLoop:
    attributes = ",".join(f"+{f}" for f in sorted(target.features - {SVE_256}))
    options = [f"-mtriple={target.triple}", f"-mcpu={cpu}", f"-mattr={attributes}"]
    text = "\n".join(loop) + "\n"
    told = json.loads(_run([tool, *options, "-json", f"-iterations={_ITERATIONS}"], text))
    region = told["CodeRegions"][0]
    summary, infos = region["SummaryView"], region["InstructionInfoView"]["InstructionList"]
    products = products_of(loop)
    multiplying = [str(i) for i, n in zip(loop, products, strict=True) if n]
    alone = json.loads(_run([tool, *options, "-json", "-iterations=1"], "\n".join(multiplying) + "\n"))
    assert len(infos) == len(loop), "llvm-mca has read other instructions"
    return ModelledLoop(
        len(loop),
        sum(products),
        summary["TotalCycles"] / _ITERATIONS,
        summary["BlockRThroughput"],
        alone["CodeRegions"][0]["SummaryView"]["BlockRThroughput"],
    )


def _is_instruction(line: str) -> bool:
    return line.startswith("\t") and not line.startswith("\t.")


def _mnemonic(line: str) -> str:
    return line.strip().removeprefix("{vex}").split()[0]


def _run(command: Sequence[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()[:500]}")
    return done.stdout
