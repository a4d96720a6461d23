"""llama.cpp, through the functions that its Python package has for its C interface."""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engines.decoders.decoder import TextEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.cli.guest.job import EngineJob, Progress


def _say_nothing(level: int, text: bytes, data: object) -> None:
    """Of what is logged."""


class LlamaCpp(TextEngine):
    def __init__(self, job: EngineJob, progress: Progress) -> None:
        super().__init__()
        self._c: Any = import_module("llama_cpp")
        self.version = self._c.__version__
        self._log = self._c.llama_log_callback(_say_nothing)  # kept: the library calls it
        self._c.llama_log_set(self._log, None)
        self._c.llama_backend_init()
        given = self._c.llama_model_default_params()
        self._model = self._c.llama_model_load_from_file(job.model.encode(), given)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {job.model}")
        self._size = self._c.llama_vocab_n_tokens(self._c.llama_model_get_vocab(self._model))
        given = self._c.llama_context_default_params()
        given.n_ctx = given.n_batch = given.n_ubatch = job.options["context"]
        given.n_threads = given.n_threads_batch = job.threads
        self._context = self._c.llama_init_from_model(self._model, given)

    def begin(self) -> None:
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)

    def append(self, tokens: Sequence[int]) -> NDArray[Any]:
        array = (self._c.llama_token * len(tokens))(*tokens)
        status = self._c.llama_decode(self._context, self._c.llama_batch_get_one(array, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode gives {status}")
        logits = self._c.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self._size,))
