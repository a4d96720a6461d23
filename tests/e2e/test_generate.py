"""Language models from their weights to an answer: against other engines, in pieces, and on the command line."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner, Result

from tests.llm_models import TINY, write_folder, write_tokenizer
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.llm.checkpoint import GivenWeights, RandomWeights
from tilewright.llm.config import DecoderConfig, config_of
from tilewright.llm.generate import Decoder
from tilewright.llm.sampling import Sampling
from tilewright.llm.write_model import FLOATS, Precision, write_decoder
from tilewright.support.errors import UserError

CONFIG = config_of(TINY)
PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28, 84, 19, 71, 69, 39]


def onnxruntime_logits(path: Path, config: DecoderConfig, tokens: Sequence[int]) -> Any:
    session = onnxruntime.InferenceSession(str(path))
    empty = np.zeros((1, config.kv_heads, 0, config.head_size), np.float32)
    feeds = {i.name: empty for i in session.get_inputs()}
    return session.run(["logits"], {**feeds, "input_ids": np.array([tokens])})[0]


made_path: dict[Decoder, Path] = {}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    path = tmp_path_factory.mktemp("tiny") / "model.onnx"
    write_decoder(path, CONFIG, RandomWeights(CONFIG))
    with Decoder(path, CONFIG, context=48, piece=8, threads=1) as made:
        made_path[made] = path
        yield made


def test_logits_are_those_of_onnxruntime(decoder: Decoder) -> None:
    """In 4 bits: both bring rows to bytes."""
    expected = onnxruntime_logits(made_path[decoder], CONFIG, PROMPT)
    np.testing.assert_allclose(decoder.text().append(PROMPT), expected, atol=2e-3)


def test_pieces_do_not_matter(decoder: Decoder) -> None:
    """A prompt in pieces of eight, of others, and token by token."""
    whole = decoder.text().append(PROMPT).copy()
    for cuts in ([5, 8], [1, 2], list(range(1, len(PROMPT)))):
        text = decoder.text()
        for start, stop in zip([0, *cuts], [*cuts, len(PROMPT)], strict=True):
            logits = text.append(PROMPT[start:stop])
        np.testing.assert_allclose(logits, whole, atol=1e-5)
        assert text.tokens == PROMPT


def test_any_number_of_threads_gives_the_same_bits(decoder: Decoder) -> None:
    path, sampling = made_path[decoder], Sampling(0.8, top_k=50, top_p=0.95, seed=7)
    expected = list(decoder.text().generate(PROMPT, 12, sampling))
    logits = decoder.text().append(PROMPT).copy()
    with Decoder(path, CONFIG, context=48, piece=8, threads=3) as other:
        np.testing.assert_array_equal(other.text().append(PROMPT), logits)
        assert list(other.text().generate(PROMPT, 12, sampling)) == expected


def test_a_text_goes_on_where_it_ended(decoder: Decoder) -> None:
    whole = list(decoder.text().generate(PROMPT, 10))
    text = decoder.text()
    first = list(text.generate(PROMPT, 4))
    assert first + list(text.generate(first[-1:], 6)) == whole  # the last token is not run before
    assert text.tokens == PROMPT + whole[:-1]


def test_a_text_ends_after_a_token_that_stops_it(decoder: Decoder) -> None:
    whole = list(decoder.text().generate(PROMPT, 10))
    at = whole.index(whole[5])
    assert list(decoder.text().generate(PROMPT, 10, stops={whole[5]})) == whole[: at + 1]


def test_a_text_ends_with_its_context(decoder: Decoder) -> None:
    text = decoder.text()
    assert len(list(text.generate(PROMPT, 100))) == 48 - len(PROMPT) + 1
    assert len(text.tokens) == 48
    with pytest.raises(UserError, match="has 49 tokens, and the context is 48"):
        text.append([1])
    with pytest.raises(UserError, match="the model is made for 64"):
        Decoder(made_path[decoder], CONFIG, context=65)
    with pytest.raises(UserError, match="300 is no token: there are 300"):
        decoder.text().append([300])


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"]
)
def test_logits_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    """Of the form in float32, with the weights that transformers writes."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    own = {
        **TINY,
        "architectures": [architecture],
        "tie_word_embeddings": architecture == "Qwen2ForCausalLM",
        "attention_bias": architecture == "LlamaForCausalLM",
        "initializer_range": 0.2,
        "head_dim": 32,
    }
    if architecture == "LlamaForCausalLM":
        scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
        own["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, **scaling}
    kind = architecture.removesuffix("ForCausalLM")
    model = getattr(transformers, architecture)(getattr(transformers, f"{kind}Config")(**own)).eval()
    with torch.no_grad():
        for name, vector in model.named_parameters():
            if vector.ndim == 1:  # biases are zeros and norms are ones
                vector.add_(0.3 * torch.randn_like(vector))
            assert vector.numel(), name
        expected = model(torch.tensor([PROMPT])).logits[:, -1].numpy()
    arrays = {n: t.detach().numpy() for n, t in model.state_dict().items()}
    model.save_pretrained(tmp_path)
    config = config_of(json.loads((tmp_path / "config.json").read_text()))
    write_decoder(tmp_path / "model.onnx", config, GivenWeights(arrays), FLOATS)
    with Decoder(tmp_path / "model.onnx", config, context=48, piece=16, threads=1) as decoder:
        np.testing.assert_allclose(decoder.text().append(PROMPT), expected, rtol=1e-4, atol=1e-4)


def test_rows_that_are_no_whole_blocks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rows of 96 weights are no whole blocks of 64"):
        write_decoder(tmp_path / "m.onnx", CONFIG, RandomWeights(CONFIG), Precision(block=64))


# ---------------------------------------------------------------------------------------------------- the command line


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, ["generate", *(str(a) for a in arguments)])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    made = write_folder(tmp_path_factory.mktemp("published"))
    write_tokenizer(made)
    return made


OPTIONS = ("--context", 48, "--threads", 1)


def test_text_comes_out(folder: Path) -> None:
    plain = call(folder, "--prompt", "Hello", "--tokens", 8, *OPTIONS)
    found = json.loads(call(folder, "--prompt", "Hello", "--tokens", 8, "--json", *OPTIONS).stdout)
    assert plain.stdout == found["text"] + "\n"
    assert len(found["prompt"]) == 5 and len(found["tokens"]) == 8 and found["ended"] == "tokens"
    assert (found["prefill"]["tokens"], found["decode"]["tokens"]) == (5, 7)
    assert "generated 7 tokens" in plain.stderr
    numbers = ",".join(map(str, found["prompt"]))
    shown = call(folder, "--prompt-tokens", numbers, "--tokens", 8, *OPTIONS).stdout
    assert shown.split() == [str(n) for n in found["tokens"]]


def test_random_weights_need_a_configuration_alone(tmp_path: Path) -> None:
    bare = write_folder(tmp_path / "bare", has_weights=False)
    first, again = (
        call(
            bare, "--random", "--prompt-tokens", "1 2 3", "--tokens", 4, "--keep", tmp_path / "kept", *OPTIONS
        )
        for _ in range(2)
    )
    assert first.stdout == again.stdout and len(first.stdout.split()) == 4
    assert sorted(p.name for p in bare.iterdir()) == ["config.json"]
    (kept,) = (tmp_path / "kept").iterdir()
    assert {p.name for p in kept.iterdir()} == {"model.onnx", "model.onnx.data"}


def test_a_question_is_put_as_the_model_wants_it(folder: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}:{% endif %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    try:
        asked = json.loads(call(folder, "--chat", "--prompt", "Hi", "--tokens", 1, "--json", *OPTIONS).stdout)
        given = json.loads(call(folder, "--prompt", "<user>Hi:", "--tokens", 1, "--json", *OPTIONS).stdout)
        assert asked["prompt"] == given["prompt"]
    finally:
        (folder / "tokenizer_config.json").unlink()
    refused = call(folder, "--chat", "--prompt", "Hi", status=ExitStatus.USER_ERROR)
    assert "chat_template" in refused.stderr


def test_mistakes_are_told(folder: Path, tmp_path: Path) -> None:
    def said(*arguments: object, status: int = ExitStatus.USER_ERROR) -> str:
        return call(*arguments, status=status).stderr

    assert "is no folder" in said(folder / "config.json", "--prompt", "x")
    assert "there is no prompt" in said(folder)
    assert "no config.json" in said(tmp_path, "--prompt", "x")
    bare = write_folder(tmp_path / "bare", has_weights=False)
    assert "there is no tokenizer.json" in said(bare, "--prompt", "x")
    assert "there are no weights" in said(bare, "--prompt-tokens", "1")
    assert "as text and as tokens" in said(folder, "--prompt", "x", "--prompt-tokens", "1")
    assert "--context N" in said(folder, "--prompt", "x" * 49, *OPTIONS)
    assert "made for 64" in said(folder, "--prompt", "x", "--context", 65)
    assert "300 is no token" in said(folder, "--prompt-tokens", "300", *OPTIONS)
    assert "not a list of numbers" in said(folder, "--prompt-tokens", "a", status=ExitStatus.USAGE)
    (bare / "tokenizer.json").write_text("{}")
    assert "it is no tokenizer" in said(bare, "--prompt", "x")
    kept = tmp_path / "file"
    kept.touch()
    assert "--keep FOLDER" in said(folder, "--prompt", "x", "--keep", kept / "below")


def test_an_interrupt_ends_it_with_what_there_is(folder: Path) -> None:
    call(folder, "--prompt", "Hello", "--tokens", 1, *OPTIONS)  # is compiled
    arguments = ["tilewright", "generate", folder, "--prompt", "Hello", "--tokens", 40, *OPTIONS]
    script = f"""
import sys, time
import tilewright.llm.sampling as sampling
from tilewright.cli.entry import main

def slowly(sampler, logits, own=sampling.Sampler.next):
    time.sleep(0.1)
    return own(sampler, logits)

sampling.Sampler.next = slowly
sys.argv = {[str(a) for a in arguments]}
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED and first
    assert b"Traceback" not in err and b"interrupted" in err, (out, err)
