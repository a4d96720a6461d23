"""Text and tokens: the `tokenizer.json` that a model comes with, and how it wants a question to be put."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tilewright.llm.config import read_json
from tilewright.support.errors import UserError

_FILE = "tokenizer.json"


class Tokenizer:
    """The tokenizer of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / _FILE
        if not path.exists():
            raise UserError(
                f"there is no {_FILE}",
                where=str(folder),
                hint="fetch it with the model; or give tokens by their numbers, and get numbers",
            )
        try:
            tokenizers: Any = import_module("tokenizers")
        except ImportError as e:
            raise UserError("text needs the package tokenizers", hint="pip install 'tilewright[llm]'") from e
        self._streams: Any = import_module("tokenizers.decoders")
        try:
            self._own = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # its errors have no class of their own
            raise UserError(f"it is no tokenizer: {e}", where=str(path)) from e

    def encode(self, text: str, *, is_bare: bool = True) -> list[int]:
        """`is_bare`: what the tokenizer puts around a text is not there yet."""
        return list(self._own.encode(text, add_special_tokens=is_bare).ids)

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of tokens as they come; a character of several tokens comes with the last."""
        stream = self._streams.DecodeStream(skip_special_tokens=True)
        for token in tokens:
            yield stream.step(self._own, token) or ""

    def question(self, text: str) -> list[int]:
        """What a user says to a model that was trained to answer, as the tokens of the whole conversation so far."""
        config = read_json(self._folder / "tokenizer_config.json") or {}
        template = self._template(config)
        if template is None:
            raise UserError(
                "the model does not say how it is to be asked (chat_template)",
                where=str(self._folder),
                hint="give the prompt as the model was trained on it, without --chat",
            )
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        given: dict[str, Any] = {"raise_exception": _refuse}
        environment.globals.update(given)
        names = {n: _content(config.get(n)) for n in ("bos_token", "eos_token", "pad_token", "unk_token")}
        messages = [{"role": "user", "content": text}]
        try:
            whole = environment.from_string(template).render(
                messages=messages, add_generation_prompt=True, **{n: t for n, t in names.items() if t}
            )
        except (TemplateError, TypeError, ValueError) as e:
            raise UserError(f"the model's chat template fails: {e}", where=str(self._folder)) from e
        return self.encode(whole, is_bare=False)

    def _template(self, config: dict[str, Any]) -> str | None:
        path = self._folder / "chat_template.jinja"
        if path.exists():
            return path.read_text(encoding="utf-8")
        found = config.get("chat_template")
        if isinstance(found, list):  # several, by name
            several = cast(list[dict[str, Any]], found)
            found = next((t.get("template") for t in several if t.get("name") == "default"), None)
        return found if isinstance(found, str) else None


def _content(token: Any) -> str | None:
    """A token is written as its text, or as a dictionary that has it."""
    own = token.get("content") if isinstance(token, dict) else token  # pyright: ignore
    return own if isinstance(own, str) else None


def _refuse(message: str) -> None:
    raise ValueError(message)
