"""A language model in 4 bits, token by token, against other engines and against memory: docs/results/decode.md.

    python -m benchmarks.decode
    python -m benchmarks.decode --threads 2 --against ort --no-save

The model has the shape of Qwen2.5-0.5B and random weights. llama.cpp runs in the interpreter that BENCH_PYTHON_LLAMACPP
names, or in $BENCH_HOME/llamacpp, whose packages are llama-cpp-python, built from its sources, and gguf; gguf is needed
here, too.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.catalogue import ROOT
from benchmarks.decoder_gguf import write_gguf
from benchmarks.options import PageOptions, Turns, page_options, turn_options
from benchmarks.real_files import bench_home
from benchmarks.real_measure import engine_python
from benchmarks.results import table
from benchmarks.suite_results import OURS
from benchmarks.suite_tables import ratio_text, threads_text
from tilewright.cli.catalogue import Peer
from tilewright.cli.engine_process import EngineProcess
from tilewright.cli.guest.job import read_raw_array
from tilewright.cli.machine import machine
from tilewright.cli.output import note
from tilewright.cli.peak import measure_limits
from tilewright.llm.checkpoint import RandomWeights, tensor_shapes
from tilewright.llm.config import DecoderConfig, read_config
from tilewright.llm.generate import Decoder
from tilewright.llm.prepare import prepare_decoder
from tilewright.llm.write_model import write_decoder
from tilewright.support.affinity import pinned
from tilewright.support.turns import Series, speedup
from tilewright.target.target import native

SHAPE = Path(ROOT) / "examples" / "llm" / "qwen2.5-0.5b"
BLOCK, CONTEXT = 32, 512
PEERS = ("ort", "llamacpp")
_TIMEOUT = 600.0  # seconds of a step
METHOD = f"""Random weights in the shape of Qwen2.5-0.5B: 4 bits in blocks of {BLOCK}, of the same codes in all engines;
scales are float32, in llama.cpp (Q4_0) float16. Activations are brought to bytes by all of them. ONNX Runtime runs
MatMulNBits with accuracy_level 4 and GroupQueryAttention, llama.cpp is built for this processor. Each engine runs in a
process of its own, pinned to as many cores as threads. They take turns: a prompt of {{prompt}} tokens, then {{count}}
tokens, each the likeliest; times are medians over all tokens, ratios have 95 % intervals over rounds. *of memory*: the
bytes of weights that a token reads (codes and scales; of ours) over our time, over what the same cores read from
memory, measured after each round. *resident* is all memory of the process, with the interpreter and its packages, in MB
and over the packed weights; *own* without what the process had before the model was loaded. *difference* is the largest
of the logits after the prompt from ONNX Runtime's, over the largest of these."""


def _engine(name: str, title: str, source: str, packages: tuple[str, ...]) -> Peer:
    return Peer(name, title, f"benchmarks.engines.decoders.{source}", packages, "", ROOT)


ENGINES: Mapping[str, Peer] = {
    p.name: p
    for p in (
        _engine(OURS, "Tilewright", "tilewright:Ours", ("tilewright.llm.generate",)),
        _engine("ort", "ONNX Runtime", "ort:OnnxRuntime", ("onnxruntime",)),
        _engine("llamacpp", "llama.cpp", "llamacpp:LlamaCpp", ("llama_cpp",)),
    )
}


@dataclass(slots=True)
class Found:
    """What one engine did in all rounds."""

    version: str
    logits: Any
    prompts: list[tuple[float, ...]] = field(default_factory=list)  # by rounds
    tokens: list[tuple[float, ...]] = field(default_factory=list)
    before_mb: float = 0.0
    resident_mb: float = 0.0

    @property
    def prompt_times(self) -> Series:
        return Series(tuple(self.prompts))

    @property
    def token_times(self) -> Series:
        return Series(tuple(self.tokens))


def weight_bytes(config: DecoderConfig) -> int:
    """Of the matrices that a token is multiplied with, which all of them are: the table is the head's, too, or it is
    not read but for a row."""
    table = 0 if config.is_tied else config.vocabulary * config.hidden
    count = sum(s[0] * s[1] for s in tensor_shapes(config).values() if len(s) == 2) - table
    return count // 2 + 4 * count // BLOCK


def write_models(config: DecoderConfig, folder: Path, peers: Sequence[str]) -> dict[str, Path]:
    """The files of the engines; made once."""
    made = {OURS: prepare_decoder(SHAPE, config, kept=folder, seed=0)}
    weights = RandomWeights(config, 0)
    for peer, name in (("ort", "grouped.onnx"), ("llamacpp", "model.gguf")):
        path = folder / name
        if peer in peers and not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                staged = Path(work) / name
                if peer == "ort":
                    write_decoder(staged, config, weights, is_grouped=True)
                else:
                    write_gguf(staged, config, weights)
                for file in sorted(staged.parent.iterdir(), reverse=True):  # the model after its weights
                    shutil.move(file, folder / file.name)
        made[peer] = path
    return made


def measure(
    config: DecoderConfig,
    files: Mapping[str, Path],
    engines: Sequence[str],
    threads: int,
    turns: Turns,
    prompt: int,
    count: int,
    work: Path,
) -> tuple[dict[str, Found], float]:
    """What each engine did, and how many bytes in a second come from memory."""
    tokens = np.random.default_rng(3).integers(0, config.vocabulary, (1, prompt))
    work.mkdir(parents=True)
    np.save(work / "input_0.npy", tokens)
    found: dict[str, Found] = {}
    rates: list[float] = []
    cores = machine().affinity[-threads:]
    with ExitStack() as stack:
        processes: dict[str, EngineProcess] = {}
        for name in engines:
            folder = work / name
            folder.mkdir()
            python = engine_python(name)
            process = EngineProcess(ENGINES[name], python, threads, cores, folder, _TIMEOUT)
            processes[name] = stack.enter_context(process)
            answer = process.ask(
                {
                    "do": "load",
                    "model": str(files[name]),
                    "threads": threads,
                    "folder": str(folder),
                    "shared": str(work),
                    "packages": ENGINES[name].packages,
                    "feeds": [("input_ids", "int64")],
                    "options": {"config": str(SHAPE), "context": CONTEXT},
                }
            )
            logits = read_raw_array(str(folder / "output_0.npy"), "float32")
            found[name] = Found(answer["version"], logits)
        for _ in range(turns.rounds):
            for name, process in processes.items():
                text = process.ask({"do": "text", "count": count})
                own = found[name]
                own.prompts.append((text["prompt"],))
                own.tokens.append(tuple(text["tokens"]))
                own.before_mb, own.resident_mb = text["before_mb"], text["resident_mb"]
            with pinned(threads):
                rates.append(measure_limits(native(), threads).byte_rate)
    return found, float(np.median(rates))


def rows(found: Mapping[str, Found], nbytes: int, rate: float, prompt: int) -> list[list[str]]:
    lines: list[list[str]] = []
    wanted = found["ort"].logits if "ort" in found else found[OURS].logits
    for name, own in found.items():
        token = own.token_times.median
        difference = float(np.abs(own.logits - wanted).max() / np.abs(wanted).max())
        lines.append(
            [
                ENGINES[name].title,
                own.version,
                f"{token * 1e3:.2f}",
                f"{1 / token:.1f}",
                "" if name == OURS else ratio_text(speedup(found[OURS].token_times, own.token_times)),
                f"{nbytes / token / rate:.2f}" if name == OURS else "",
                f"{prompt / own.prompt_times.median:.0f}",
                "" if name == OURS else ratio_text(speedup(found[OURS].prompt_times, own.prompt_times)),
                f"{own.resident_mb:.0f} ({own.resident_mb * 2**20 / nbytes:.2f})",
                f"{own.resident_mb - own.before_mb:.0f} ({(own.resident_mb - own.before_mb) * 2**20 / nbytes:.2f})",
                f"{difference:.1e}",
            ]
        )
    return lines


COLUMNS = (
    "engine",
    "version",
    "a token, ms",
    "tokens / s",
    "theirs / ours",
    "of memory",
    "prompt, tokens / s",
    "theirs / ours",
    "resident",
    "own",
    "difference",
)


@click.command()
@click.option("--against", default=",".join(PEERS), show_default=True, help="Engines to compare with.")
@click.option("--prompt", default=128, show_default=True, type=click.IntRange(1))
@click.option("--count", default=32, show_default=True, type=click.IntRange(1), help="Tokens of a turn.")
@turn_options(rounds=9, seconds=0.0)
@page_options("decode")
def main(against: str, prompt: int, count: int, turns: Turns, page: PageOptions) -> None:
    """Generate text; writes docs/results/decode.md."""
    config, peers = read_config(SHAPE), [p for p in against.split(",") if p]
    folder = bench_home() / "models" / "decode"
    folder.mkdir(parents=True, exist_ok=True)
    files = write_models(config, folder, peers)
    Decoder(files[OURS], config, context=CONTEXT).close()  # compiled with all cores, and kept
    parts: list[str] = []
    leads: list[str] = []
    nbytes = weight_bytes(config)
    with tempfile.TemporaryDirectory(prefix="tilewright-decode-") as name:
        for threads in turns.thread_counts:
            work = Path(name) / str(threads)
            found, rate = measure(config, files, [OURS, *peers], threads, turns, prompt, count, work)
            lines = rows(found, nbytes, rate, prompt)
            for line in lines:
                note(" ".join(line))
            own = found[OURS]
            against_each = ", ".join(
                f"{speedup(own.token_times, found[p].token_times).value:.2f} times the speed of {ENGINES[p].title}"
                for p in peers
            )
            share = nbytes / own.token_times.median / rate
            leads.append(
                f"{against_each}, and {share:.2f} of that of memory ({threads_text(threads).lower()})"
            )
            parts += [
                f"## {threads_text(threads)}",
                f"Weights that a token reads: {nbytes / 1e6:.0f} MB; memory brings {rate / 1e9:.1f} GB/s.",
                table(COLUMNS, lines),
            ]
    shows = f"A language model of half a billion weights in 4 bits gives tokens at {'; '.join(leads)}."
    page.publish("decode", "Generating text", shows, METHOD.format(prompt=prompt, count=count), parts, None)


if __name__ == "__main__":
    main()
