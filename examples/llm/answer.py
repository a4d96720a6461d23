"""An answer of a language model, token by token.

    python examples/llm/answer.py FOLDER [PROMPT]

FOLDER is a model as it is published: config.json, *.safetensors, tokenizer.json. If it has no weights, they are
random, and tokens are numbers.
"""

import sys
from pathlib import Path

from tilewright.llm.config import read_config
from tilewright.llm.generate import Decoder
from tilewright.llm.prepare import prepare_decoder
from tilewright.llm.sampling import Sampling
from tilewright.llm.tokenizer import Tokenizer
from tilewright.support.errors import UserError


def answer(folder: Path, prompt: str, count: int = 64) -> None:
    config = read_config(folder)
    has_weights = any(folder.glob("*.safetensors"))
    tokenizer = Tokenizer(folder) if has_weights else None
    # In 4 bits, beside the weights: written once.
    path = prepare_decoder(folder, config, seed=None if has_weights else 0)
    # One program for prompts and texts of all lengths up to the context.
    with Decoder(path, config, context=min(512, config.context)) as decoder:
        text = decoder.text()
        tokens = [1, 2, 3] if tokenizer is None else tokenizer.encode(prompt)
        found = text.generate(tokens, count, Sampling(temperature=0.7, top_p=0.9), config.stops)
        for piece in (f"{n} " for n in found) if tokenizer is None else tokenizer.pieces(found):
            print(piece, end="", flush=True)
        print(f"\n\n{text.decode.rate:.1f} tokens a second", file=sys.stderr)


if __name__ == "__main__":
    try:
        answer(Path(sys.argv[1]), " ".join(sys.argv[2:]) or "Once upon a time")
    except (IndexError, UserError) as e:
        sys.exit(str(e) if isinstance(e, UserError) else (__doc__ or ""))
