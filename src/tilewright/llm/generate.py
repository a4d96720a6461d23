"""Prompts in, tokens out: a program that appends to its cache of keys and values in place.

A prompt is run in pieces of a given length, then one token after the other. A program is made for all lengths, so
nothing is compiled while a text grows, and a text never begins anew when it is continued.
"""

import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.api import load
from tilewright.llm.config import DecoderConfig
from tilewright.llm.sampling import Sampler, Sampling
from tilewright.runtime.open_session import OpenSession
from tilewright.support.closing import Closing
from tilewright.support.errors import Hint, InternalError, UserError
from tilewright.support.progress import OnProgress

PIECE = 128  # tokens of a prompt that are run at a time: their rows make the products compute-bound


class Decoder(Closing):
    """A model of `write_model` as a program for texts of up to `context` tokens."""

    def __init__(
        self,
        path: Path,
        config: DecoderConfig,
        *,
        context: int | None = None,
        piece: int = PIECE,
        threads: int | None = None,
        target: str = "native",
        progress: OnProgress | None = None,
    ) -> None:
        self.config = config
        self.context = min(2048, config.context) if context is None else context
        if not 1 <= self.context <= config.context:
            raise UserError(
                f"a context of {self.context} tokens is asked for, and the model is made for {config.context}",
                hint=Hint("give a smaller one", command="give a smaller one: --context N"),
            )
        self.piece = min(piece, self.context)
        dims = {"past": (0, self.context), "sequence": (1, self.piece)}
        session = load(path, dims=dims, threads=threads, target=target, progress=progress)
        if not isinstance(session, OpenSession):
            raise InternalError("a decoder became a program for each of its shapes")
        self._session = session
        self.threads = session.threads

    def text(self) -> "Text":
        """An empty text. There may be several at a time; they share the program and its weights."""
        return Text(self, self._session)

    def close(self) -> None:
        self._session.close()


class Text:
    """Tokens whose keys and values are kept. `seconds` and `counts` say what pieces of prompts and single tokens
    took."""

    def __init__(self, decoder: Decoder, session: OpenSession) -> None:
        self._decoder, self._state = decoder, session.state()
        self.tokens: list[int] = []
        self.prompt, self.decode = Speed(), Speed()

    def append(self, tokens: Sequence[int]) -> NDArray[Any]:
        """Run tokens; gives the logits of what follows the last of them: a view that the next call overwrites."""
        own = self._decoder
        self._check(tokens)
        logits: NDArray[Any] | None = None
        for start in range(0, len(tokens), own.piece):
            piece = np.array([tokens[start : start + own.piece]], np.int64)
            begin = time.perf_counter()
            logits = self._state.step({"input_ids": piece})["logits"]
            self.tokens += tokens[start : start + own.piece]
            speed = self.prompt if len(tokens) > 1 else self.decode
            speed.add(piece.size, time.perf_counter() - begin)
        assert logits is not None
        return logits

    def _check(self, tokens: Sequence[int]) -> None:
        own = self._decoder
        wrong = next((n for n in tokens if not 0 <= n < own.config.vocabulary), None)
        if wrong is not None or not tokens:
            raise UserError(
                "there are no tokens to go on from"
                if wrong is None
                else f"{wrong} is no token: there are {own.config.vocabulary}"
            )
        count = len(self.tokens) + len(tokens)
        if count > own.context:
            wider = own.config.context
            raise UserError(
                f"the text has {count} tokens, and the context is {own.context}",
                hint=Hint(
                    f"load the model with a longer one: context=…, at most {wider}",
                    command=f"give a longer one: --context N, at most {wider}",
                )
                if own.context < wider
                else "the model is not made for more",
            )

    def generate(
        self,
        prompt: Sequence[int],
        count: int,
        sampling: Sampling = Sampling(),  # noqa: B008
        stops: Collection[int] = (),
    ) -> Generator[int]:
        """Up to `count` tokens after the prompt, as they are found; ends after one of `stops`, or at the context's end.

        A token is a part of the text when the next one is asked for.
        """
        sampler = Sampler(sampling)
        logits = self.append(prompt)
        for n in range(count):
            token = sampler.next(logits)
            yield token
            if token in stops or n + 1 == count or len(self.tokens) == self._decoder.context:
                return
            logits = self.append([token])


@dataclass
class Speed:
    """Tokens that were run, and how long that took."""

    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds

    @property
    def rate(self) -> float:
        """Tokens in a second."""
        return self.tokens / self.seconds if self.seconds else 0.0
