"""A folder of published weights becomes a model that is kept beside them: converted once, loaded ever after.

It is found again as long as the configuration, the files of weights and what it is converted to are the same.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from tilewright.llm.checkpoint import CheckpointFiles, RandomWeights, checkpoint_paths
from tilewright.llm.config import DecoderConfig
from tilewright.llm.write_model import Precision, write_decoder
from tilewright.support.errors import Hint, UserError
from tilewright.support.progress import OnProgress

_FORMAT = 1  # of what is written: another one is not found again
_MODEL = "model.onnx"
_OWN = "tilewright"  # the folder in that of the model


def prepare_decoder(
    folder: Path,
    config: DecoderConfig,
    precision: Precision = Precision(),  # noqa: B008
    *,
    kept: Path | None = None,
    seed: int | None = None,
    progress: OnProgress | None = None,
) -> Path:
    """The path of the ONNX model, which is written if it is not there yet: into `kept`, or a folder in that of the
    weights.

    `seed`: with random weights, so that nothing but `config.json` is read.
    """
    target = (kept or folder / _OWN) / _digest(folder, config, precision, seed)
    if not (target / _MODEL).exists():
        try:
            _write(target, folder, config, precision, seed, progress)
        except OSError as e:
            raise UserError(
                f"cannot keep the model in {target.parent}: {e.strerror or e}",
                hint=Hint(
                    "name a folder that can be written to: kept=…",
                    command="name a folder that can be written to: --keep FOLDER",
                ),
            ) from e
    return target / _MODEL


def _digest(folder: Path, config: DecoderConfig, precision: Precision, seed: int | None) -> str:
    if seed is not None:
        source = [f"random {seed}"]
    else:
        states = [(p.name, p.stat()) for p in checkpoint_paths(folder)]
        source = [f"{name} {s.st_size} {s.st_mtime_ns}" for name, s in states]
    text = "\n".join([str(_FORMAT), str(config), str(precision), *source])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(
    target: Path,
    folder: Path,
    config: DecoderConfig,
    precision: Precision,
    seed: int | None,
    progress: OnProgress | None,
) -> None:
    """All of it, or nothing: it appears under its name when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".staged-", dir=target.parent))
    try:
        if seed is not None:
            write_decoder(staged / _MODEL, config, RandomWeights(config, seed), precision, progress=progress)
        else:
            with CheckpointFiles(folder, config) as files:
                write_decoder(staged / _MODEL, config, files, precision, progress=progress)
        try:
            os.replace(staged, target)
        except OSError:
            if not (target / _MODEL).exists():  # otherwise somebody else was quicker
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
