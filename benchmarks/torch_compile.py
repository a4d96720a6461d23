"""`torch.compile(backend="tilewright")` against Inductor and eager mode: right answers, first calls, steady times.

    python -m benchmarks.torch_compile --threads 1            # results of each model are kept as they come
    python -m benchmarks.torch_compile --models bert,unet --quick
    python -m benchmarks.torch_compile --tables               # docs/results/torch-compile.md from what was kept

Every engine runs in a process of its own, with empty caches, so that a first call is what somebody waits for who has
never run the model. Then the processes take turns, so that what disturbs the machine disturbs all of them. Ours runs
once more without a compiler on its path. The interpreter needs torch, torchvision, transformers and timm.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.torch_models import MODELS, make

ENGINES = ("eager", "inductor", "tilewright")
_BOUND = 1e-3  # of an error, relative to the largest output of eager mode
_ROOT = Path(__file__).parents[1]
_KEPT = Path.home() / ".cache" / "tilewright-bench" / "torch-compile-results"
_PAGE = _ROOT / "docs" / "results" / "torch-compile.md"


# ------------------------------------------------------------------------------------------------- one engine's process


def serve(name: str, engine: str, threads: int) -> None:
    """Make the model, then answer commands: `first`, `time SECONDS`, `error`; a line of JSON each."""
    torch = import_module("torch")
    torch.set_num_threads(threads)
    model, args = make(name)
    run: Any = model
    if engine == "tilewright":
        import_module("tilewright.dynamo")
    if engine != "eager":
        run = torch.compile(model, backend=engine)
    with torch.inference_mode():
        for line in sys.stdin:
            match line.split():
                case ["first"]:
                    start = time.perf_counter()
                    run(*args)
                    _say({"seconds": time.perf_counter() - start})
                case ["error"]:
                    want, got = model(*args), run(*args)
                    worst = (want - got).abs().max() / want.abs().max()
                    _say({"error": float(worst), "left": _left(engine)})
                case ["time", seconds]:
                    times: list[float] = []
                    end = time.perf_counter() + float(seconds)
                    while len(times) < 3 or time.perf_counter() < end:
                        start = time.perf_counter()
                        run(*args)
                        times.append(time.perf_counter() - start)
                    _say({"seconds": min(times), "median": statistics.median(times)})
                case _:
                    return


def _left(engine: str) -> list[str]:
    """What is not native code."""
    if engine != "tilewright":
        return []
    found = import_module("tilewright.dynamo").reports()
    return [r.why_eager for r in found if r.why_eager] + [str(c) for r in found for c in r.left]


def _say(answer: dict[str, Any]) -> None:
    print("@" + json.dumps(answer), flush=True)


class _Process:
    """An engine with a model, asked by lines."""

    def __init__(self, name: str, engine: str, threads: int, path: str | None = None) -> None:
        self.folder = tempfile.mkdtemp(prefix=f"torch-compile-{engine}-")
        env = {
            **os.environ,
            "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}",
            "TORCHINDUCTOR_CACHE_DIR": f"{self.folder}/inductor",
            "TILEWRIGHT_CACHE": f"{self.folder}/tilewright",
            "TILEWRIGHT_DB": "off",
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
        }
        if path is not None:
            env["PATH"] = path
            env.pop("CXX", None)
            env.pop("CC", None)
        command = [sys.executable, "-m", "benchmarks.torch_compile", "--serve", name, engine, str(threads)]
        cores = sorted(os.sched_getaffinity(0))[-threads:]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(f"{self.folder}/log", "w"),  # noqa: SIM115  (the child's)
            text=True,
            env=env,
            cwd=_ROOT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        log = Path(self.folder, "log").read_text(encoding="utf-8")
        raise RuntimeError(f"the process ended:\n{log[-3000:]}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


# ----------------------------------------------------------------------------------------------------------- measuring


def measure(name: str, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """First calls one after the other, with the machine for each alone; then turns."""
    found: dict[str, Any] = {"model": name, "threads": threads, "torch": import_module("torch").__version__}
    processes: dict[str, _Process] = {}
    try:
        for engine in ENGINES:
            processes[engine] = _Process(name, engine, threads)
            first = processes[engine].ask("first")["seconds"]
            found[engine] = {"first": first, **processes[engine].ask("error"), "times": []}
        for _ in range(rounds):
            for engine, process in processes.items():
                found[engine]["times"].append(process.ask(f"time {seconds}")["seconds"])
    finally:
        for process in processes.values():
            process.close()
    return found


def check_without_compiler(name: str) -> dict[str, Any]:
    """Ours and Inductor with nothing on the path: which of them answers?"""
    answers: dict[str, Any] = {"model": name}
    for engine in ("inductor", "tilewright"):
        process = _Process(name, engine, 1, path="/nonexistent")
        try:
            process.ask("first")
            answers[engine] = process.ask("error")["error"] <= _BOUND
        except RuntimeError as e:
            answers[engine] = False
            lines = str(e).strip().splitlines()
            answers[f"{engine}_why"] = next((n for n in reversed(lines) if "Error: " in n), lines[-1])[:200]
        finally:
            process.close()
    return answers


# -------------------------------------------------------------------------------------------------------------- tables


def page(kept: Path) -> str:
    """The results page, from what was kept."""
    all_found = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(kept.glob("*-[0-9].json"))]
    blocks: list[str] = []
    leads: list[str] = []
    for threads in sorted({f["threads"] for f in all_found}):
        found = [f for f in all_found if f["threads"] == threads]
        rows: list[str] = []
        ratios: list[float] = []
        noise: list[float] = []
        for f in sorted(found, key=lambda f: list(MODELS).index(f["model"])):
            times = {e: statistics.median(f[e]["times"]) for e in ENGINES}
            ratio = statistics.median(
                i / t for i, t in zip(f["inductor"]["times"], f["tilewright"]["times"], strict=True)
            )
            ratios.append(ratio)
            noise.append(max(f["tilewright"]["times"]) / min(f["tilewright"]["times"]) - 1)
            first = {e: f[e]["first"] for e in ENGINES}
            rows.append(
                f"| {f['model']} | {times['eager'] * 1e3:.2f} | {times['inductor'] * 1e3:.2f} | "
                f"{times['tilewright'] * 1e3:.2f} | {ratio:.2f} | {times['eager'] / times['tilewright']:.2f} | "
                f"{first['inductor']:.1f} | {first['tilewright']:.1f} | {f['tilewright']['error']:.1e} | "
                f"{len(f['tilewright']['left']) or ''} |"
            )
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        right = sum(f["tilewright"]["error"] <= _BOUND for f in found)
        totals = {e: sum(f[e]["first"] for f in found) for e in ENGINES}
        what = "one thread" if threads == 1 else f"{threads} threads"
        leads.append(
            f"With {what}, {right} of {len(found)} models are right, {mean:.2f} times as quick as Inductor "
            f"(geometric mean); first calls take {totals['tilewright']:.0f} s in all, Inductor's "
            f"{totals['inductor']:.0f} s."
        )
        blocks.append(
            f"## {what.capitalize()}\n\n"
            "| model | eager ms | Inductor ms | Tilewright ms | × Inductor | × eager | first call: Inductor s | "
            "Tilewright s | error | calls left to PyTorch |\n|---|---|---|---|---|---|---|---|---|---|\n"
            + "\n".join(rows)
            + f"\n\nSlowest round over quickest of ours: median {1 + statistics.median(noise):.2f}, "
            f"largest {1 + max(noise):.2f}."
        )
    without = kept / "without-compiler.json"
    if without.exists():
        rows_without = json.loads(without.read_text(encoding="utf-8"))
        listed = "\n".join(
            f"| {r['model']} | {'runs' if r['inductor'] else 'fails: ' + r.get('inductor_why', 'wrong')} | "
            f"{'runs, right' if r['tilewright'] else 'fails: ' + r.get('tilewright_why', 'wrong')} |"
            for r in rows_without
        )
        blocks.append(
            "## Without a compiler\n\nNothing on the path, no CXX.\n\n"
            "| model | Inductor | Tilewright |\n|---|---|---|\n" + listed
        )
    versions = sorted({f["torch"] for f in all_found})
    return (
        "# torch.compile\n\n"
        + "\n".join(leads)
        + "\n\n"
        + "\n\n".join(blocks)
        + "\n\n## How it was measured\n\n"
        f"`python -m benchmarks.torch_compile`, torch {', '.join(versions)}, float32, random weights, "
        "one image or one\nsequence. Each engine has a process of its own with empty caches; the first call "
        "includes tracing and\ncompiling. Then processes take turns, pinned to the same cores, and a time is "
        "the least of a turn; ratios\nare medians over turns of the same round. An error is the largest "
        "difference from eager mode over the\n"
        f"largest output, and right is up to {_BOUND:g}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", nargs=3, metavar=("MODEL", "ENGINE", "THREADS"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two short rounds; results are not kept")
    parser.add_argument("--again", action="store_true", help="also models that there are results of")
    parser.add_argument("--tables", action="store_true", help="write the page from what was kept")
    parser.add_argument("--without-compiler", action="store_true", help="also run with nothing on the path")
    parser.add_argument("--kept", type=Path, default=_KEPT)
    options = parser.parse_args()
    if options.serve:
        name, engine, threads = options.serve
        serve(name, engine, int(threads))
        return
    if options.tables:
        _PAGE.write_text(page(options.kept), encoding="utf-8")
        return
    options.kept.mkdir(parents=True, exist_ok=True)
    names = options.models.split(",")
    for name in names:
        place = options.kept / f"{name}-{options.threads}.json"
        if place.exists() and not options.again and not options.quick:
            continue
        try:
            found = measure(name, options.threads, *((2, 0.3) if options.quick else (5, 1.0)))
        except RuntimeError as e:
            print(f"{name}: {e}", flush=True)
            continue
        times = {e: min(found[e]["times"]) for e in ENGINES}
        print(
            f"{name}: error {found['tilewright']['error']:.1e}, × Inductor "
            f"{times['inductor'] / times['tilewright']:.2f}, ms "
            + " ".join(f"{e} {t * 1e3:.2f} (first {found[e]['first']:.1f} s)" for e, t in times.items())
            + "".join(f"\n  left: {c}" for c in sorted(set(found["tilewright"]["left"]))),
            flush=True,
        )
        if not options.quick:
            place.write_text(json.dumps(found), encoding="utf-8")
    if options.without_compiler:
        answers = [
            check_without_compiler(n) for n in (names if options.quick else ("resnet18", "minilm", "unet"))
        ]
        print(*answers, sep="\n", flush=True)
        if not options.quick:
            (options.kept / "without-compiler.json").write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
