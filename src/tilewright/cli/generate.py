"""`tilewright generate`: the answer of a language model, token by token."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from tilewright.cli.output import note, print_json, progress_bar
from tilewright.cli.status import ExitStatus
from tilewright.llm.config import DecoderConfig, read_config
from tilewright.llm.generate import Decoder, Speed, Text
from tilewright.llm.prepare import prepare_decoder
from tilewright.llm.sampling import Sampling
from tilewright.llm.tokenizer import Tokenizer
from tilewright.llm.write_model import Precision
from tilewright.support.errors import UserError


def generate(
    model: Path,
    prompt: str | None,
    numbers: tuple[int, ...] | None,
    chat: bool,
    count: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    context: int | None,
    bits: str,
    is_random: bool,
    keep: Path | None,
    threads: int | None,
    target: str,
    as_json: bool,
) -> int:
    if not model.is_dir():
        raise UserError(
            f"{model} is no folder",
            hint="name the folder that has config.json, *.safetensors and tokenizer.json",
        )
    config = read_config(model)
    tokenizer = None if numbers is not None else _tokenizer(model, prompt)
    tokens = _prompt(tokenizer, prompt, numbers, chat)
    sampling = Sampling(temperature, top_k, top_p, seed)
    precision = Precision(bits=None if bits == "32" else int(bits))
    begin = time.perf_counter()
    with progress_bar() as progress:
        path = prepare_decoder(
            model, config, precision, kept=keep, seed=0 if is_random else None, progress=progress
        )
        decoder = Decoder(path, config, context=context, threads=threads, target=target, progress=progress)
    loaded = time.perf_counter() - begin
    with decoder:
        text, shown = decoder.text(), _Shown(tokenizer, is_silent=as_json)
        is_interrupted = False
        try:
            shown.all(text.generate(tokens, count, sampling, config.stops))
        except KeyboardInterrupt:
            is_interrupted = True
        ended = _why_ended(shown.tokens, count, config, is_interrupted)
        if as_json:
            print_json(
                {
                    "prompt": list(tokens),
                    "tokens": shown.tokens,
                    "text": None if tokenizer is None else "".join(shown.pieces),
                    "ended": ended,
                    "threads": decoder.threads,
                    "load_seconds": loaded,
                    **{n: asdict(s) for n, s in (("prefill", text.prompt), ("decode", text.decode))},
                }
            )
        else:
            click.echo()
            note(_summary(text, loaded, ended, decoder.threads))
    return ExitStatus.INTERRUPTED if is_interrupted else ExitStatus.OK


def _tokenizer(model: Path, prompt: str | None) -> Tokenizer:
    if prompt is None:
        raise UserError("there is no prompt", hint="give --prompt TEXT, or --prompt-tokens 1,2,3")
    return Tokenizer(model)


def _prompt(
    tokenizer: Tokenizer | None, prompt: str | None, numbers: Sequence[int] | None, chat: bool
) -> Sequence[int]:
    if tokenizer is None or prompt is None:
        if prompt is not None or chat:
            raise UserError("a prompt is given as text and as tokens", hint="leave one of them out")
        return numbers or ()
    return tokenizer.question(prompt) if chat else tokenizer.encode(prompt)


class _Shown:
    """Tokens as they come: printed, and kept."""

    def __init__(self, tokenizer: Tokenizer | None, *, is_silent: bool) -> None:
        self._tokenizer, self._is_silent = tokenizer, is_silent
        self.tokens: list[int] = []
        self.pieces: list[str] = []

    def all(self, tokens: Iterable[int]) -> None:
        kept = self._kept(tokens)
        pieces = self._tokenizer.pieces(kept) if self._tokenizer else (f"{n} " for n in kept)
        for piece in pieces:
            self.pieces.append(piece)
            if not self._is_silent:
                click.echo(piece, nl=False)  # flushes

    def _kept(self, tokens: Iterable[int]) -> Iterator[int]:
        for token in tokens:
            self.tokens.append(token)
            yield token


def _why_ended(tokens: Sequence[int], count: int, config: DecoderConfig, is_interrupted: bool) -> str:
    if is_interrupted:
        return "interrupted"
    if tokens and tokens[-1] in config.stops:
        return "end of text"
    return "tokens" if len(tokens) == count else "context"


def _summary(text: Text, loaded: float, ended: str, threads: int) -> str:
    def part(name: str, speed: Speed) -> str:
        return f"{name} {speed.tokens} tokens, {speed.rate:.1f} a second" if speed.tokens else ""

    parts = (f"loaded in {loaded:.1f} s", part("prompt", text.prompt), part("generated", text.decode))
    reasons = {"interrupted": "interrupted", "context": "the context is full"}
    more = (reasons.get(ended, ""), f"{threads} thread{'s' if threads > 1 else ''}")
    return "; ".join(p for p in (*parts, *more) if p)
