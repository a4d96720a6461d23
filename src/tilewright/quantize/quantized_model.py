"""Quantise a model under one bound on the error of its results (`error.py`).

tw.quantize("model.onnx", samples, 0.01).save("model.quantized.onnx")
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

from onnx import ModelProto

from tilewright.api import load
from tilewright.quantize.error import Results, relative_error
from tilewright.quantize.forms import ALLOWED, LayerForm
from tilewright.quantize.layers import Layer, Layers, find_layers
from tilewright.quantize.model_file import read_whole
from tilewright.quantize.plan import Option, choose_forms
from tilewright.quantize.quantizer import Quantizer
from tilewright.quantize.ranges import observe
from tilewright.quantize.session import InputSample
from tilewright.quantize.simulation import Forms, Simulation
from tilewright.quantize.timing import FormTimes, time_forms
from tilewright.quantize.weights import MOST
from tilewright.quantize.write import can_write, write_forms
from tilewright.runtime.machine import default_threads
from tilewright.support.errors import UserError
from tilewright.support.progress import OnProgress
from tilewright.support.replacing import replacing, write_all
from tilewright.support.turns import Ratio, Series, brief_turn, speedup, take_turns
from tilewright.target.intrinsics import bounded_byte_products
from tilewright.target.names import resolve_target
from tilewright.target.target import Target

_HELD_OUT = 4  # one of so many samples, at least one, is for errors and not for ranges
_PROBED = 2  # samples for the error of a layer alone
_TRIES = 8  # plans that are simulated
_CHECKS = 3  # plans that are compiled; after these the model stays as it is
_NEAR = 0.98  # of the bound: no better plan is looked for
_WORTH = 0.97  # of a layer's seconds in floats: what is less than this quicker is noise
_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """What a layer got, and why. `error` is what the form alone does to the model; seconds are those of the layer."""

    name: str
    operator: str
    shape: tuple[int, ...]
    form: LayerForm
    error: float
    float_seconds: float
    seconds: float
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedModel:
    """The model with an error of `error` on `held_out` samples, and `speedup` times as fast as in floats. `others` are
    nodes whose weights keep their form, with the reason.
    """

    model: ModelProto
    bound: float
    error: float
    held_out: int
    is_apart: bool  # ranges were taken from other samples
    threads: int
    float_times: Series
    times: Series
    choices: tuple[LayerChoice, ...]
    others: Mapping[str, str]

    @property
    def speedup(self) -> Ratio:
        return speedup(self.times, self.float_times)

    @property
    def counts(self) -> dict[LayerForm, int]:
        """Of layers by their forms."""
        forms = [c.form for c in self.choices]
        return {f: forms.count(f) for f in LayerForm if f in forms}

    def save(self, path: str | Path) -> None:
        """Write the model, in one step: a file that was there stays until this one is complete."""
        try:
            with replacing(Path(path)) as file:
                write_all(file, self.model.SerializeToString())
        except OSError as e:
            raise UserError(f"the model cannot be saved: {e.strerror}", where=str(path)) from None


def quantize(
    model: str | Path,
    calibration: Iterable[InputSample],
    error: float,
    *,
    bits: str = "auto",
    threads: int | None = None,
    target: str = "native",
    progress: OnProgress | None = None,
) -> QuantizedModel:
    """The quickest mixture of forms for the layers of a model that keeps its error within a bound.

    Args:
        model: path of an ONNX model of floats.
        calibration: samples of its inputs, by name. One of four is held out for errors; ranges are of the others.
        error: the bound: 0.01 for 1 %.
        bits: of weights: "auto", "8" or "4".
        threads: the quickest with this many; by default one for each physical core that the process may use.
        target: what it is to be quick on. Layers are timed, so it must run here.
        progress: called with what is done.
    """
    path, samples = Path(model), list(calibration)
    if not 0 < error < 1:
        raise UserError(f"an error of {error} is not between 0 and 1", hint="0.01 is one percent")
    if bits not in ALLOWED:
        raise UserError(f"weights of {bits!r} bits", hint=f"there are: {', '.join(ALLOWED)}")
    if not samples:
        raise UserError("there are no samples to calibrate with", hint="give some inputs of the model")
    whole = read_whole(path)
    found = find_layers(whole)
    if not found.found:
        raise UserError(
            "no layer of the model can have fewer bits",
            where=str(path),
            hint="; ".join(f"{name}: {why}" for name, why in [*found.others.items()][:3]) or None,
        )
    return _Search(whole, found, samples, error, bits, threads or default_threads(), target, progress).best()


class _Search:
    def __init__(
        self,
        model: ModelProto,
        layers: Layers,
        samples: Sequence[InputSample],
        bound: float,
        bits: str,
        threads: int,
        target: str,
        progress: OnProgress | None,
    ) -> None:
        self._model, self._layers, self._others = model, layers.found, layers.others
        self._samples = samples
        self._bound, self._threads, self._target = bound, threads, target
        self._forms = [
            f for f in ALLOWED[bits] if can_write(model, f) and any(layer.can_be(f) for layer in layers.found)
        ]
        self._tell: OnProgress = progress or _tell_nobody
        self._load = partial(load, threads=threads, target=target, cache=False)
        self._tested = samples[_HELD_OUT - 1 :: _HELD_OUT] or samples[-1:]
        tested = {id(s) for s in self._tested}
        self._seen = [s for s in samples if id(s) not in tested] or samples

    def best(self) -> QuantizedModel:
        self._tell("ranges of activations", 0, 1)
        ranges = observe(self._model, self._layers, self._seen, self._load)
        quantizer = Quantizer(*ranges, largest_weight(resolve_target(self._target)))
        times = time_forms(
            self._model,
            self._layers,
            [LayerForm.FLOAT, *self._forms],
            quantizer,
            self._seen[0],
            threads=self._threads,
            target=self._target,
            progress=self._tell,
        )
        self._tell("compiling the simulation", 0, 1)
        with Simulation(self._model, self._layers, quantizer, self._load) as simulation:
            right = [simulation.run({}, s) for s in self._tested]
            if not any(v.dtype.kind == "f" for v in right[0].values()):
                raise UserError("the model has no output of floats", hint="errors are measured on such")
            options = self._options(simulation, right, times)
            scale = 1.0  # of the bound that plans are made for
            for _ in range(_CHECKS):
                plan, scale = self._planned(simulation, right, options, scale)
                if not plan:
                    break
                made = self._checked(plan, options, times, quantizer, right)
                if made.speedup.high < 1:
                    break
                if made.error <= self._bound:
                    return made
                scale *= _NEAR * self._bound / made.error
        return self._checked({}, options, times, quantizer, right)

    def _options(
        self, simulation: Simulation, right: Sequence[Results], times: Mapping[LayerForm, FormTimes]
    ) -> dict[str, list[Option]]:
        """The forms of each layer that are quicker than floats, with their errors."""
        floats = times[LayerForm.FLOAT].layers
        quicker = [
            (layer, f, floats[layer.name] - times[f].layers[layer.name])
            for layer in self._layers
            for f in self._forms
            if layer.can_be(f) and times[f].layers[layer.name] < _WORTH * floats[layer.name]
        ]
        found: dict[str, list[Option]] = {layer.name: [] for layer in self._layers}
        for n, (layer, form, saved) in enumerate(quicker):
            self._tell("errors of layers", n, len(quicker))
            error = self._error(simulation, {layer.name: form}, right[:_PROBED])
            found[layer.name].append(Option(form, saved, error))
        return found

    def _error(self, simulation: Simulation, forms: Forms, right: Sequence[Results]) -> float:
        tested = zip(self._tested, right, strict=False)
        return relative_error((simulation.run(forms, s), wanted) for s, wanted in tested)

    def _planned(
        self,
        simulation: Simulation,
        right: Sequence[Results],
        options: Mapping[str, Sequence[Option]],
        scale: float,
    ) -> tuple[dict[str, Option], float]:
        """The plan that saves most of those that keep the bound in the simulation, and for which part of the bound it
        was made.
        """
        best: dict[str, Option] = {}
        used, most = 0.0, 0.0
        low, high = 0.0, inf
        for n in range(_TRIES):
            self._tell("plans", n, _TRIES)
            plan = choose_forms(options, self._bound * scale)
            error = self._error(simulation, {name: o.form for name, o in plan.items()}, right)
            if error <= self._bound:
                low, saved = scale, sum(o.saved for o in plan.values())
                if saved > most:
                    best, used, most = plan, scale, saved
                if error >= _NEAR * self._bound or _is_all(plan, options):
                    break
            else:
                high = scale
            scale = min(
                scale * self._bound / max(error, self._bound / 2), (low + high) / 2 if high < inf else inf
            )
        return best, used

    def _checked(
        self,
        plan: Mapping[str, Option],
        options: Mapping[str, Sequence[Option]],
        times: Mapping[LayerForm, FormTimes],
        quantizer: Quantizer,
        right: Sequence[Results],
    ) -> QuantizedModel:
        """The model of a plan, its error and its speed measured."""
        self._tell("measuring the model", 0, 1)
        forms = {name: o.form for name, o in plan.items()}
        made = write_forms(self._model, self._layers, forms, quantizer)
        shapes = {n: a.shape for n, a in self._seen[0].items()}
        sample = self._tested[0]
        with self._load(made, shapes=shapes) as ours, self._load(self._model, shapes=shapes) as floats:
            error = relative_error(
                (dict(ours.run(s)), wanted) for s, wanted in zip(self._tested, right, strict=True)
            )
            both = {True: ours, False: floats}
            turns = {is_ours: partial(brief_turn, partial(s.run, sample)) for is_ours, s in both.items()}
            series = take_turns(turns, _ROUNDS)
        return QuantizedModel(
            made,
            self._bound,
            error,
            len(self._tested),
            self._seen is not self._samples,
            self._threads,
            series[False],
            series[True],
            tuple(
                self._choice(layer, plan.get(layer.name), options[layer.name], times)
                for layer in self._layers
            ),
            self._others,
        )

    def _choice(
        self,
        layer: Layer,
        chosen: Option | None,
        options: Sequence[Option],
        times: Mapping[LayerForm, FormTimes],
    ) -> LayerChoice:
        form = LayerForm.FLOAT if chosen is None else chosen.form
        floats = times[LayerForm.FLOAT].layers[layer.name]
        return LayerChoice(
            layer.name,
            layer.kind.value,
            layer.weights.shape,
            form,
            0.0 if chosen is None else chosen.error,
            floats,
            times[form].layers[layer.name],
            _why(layer, chosen, options, times, self._forms),
        )


def largest_weight(target: Target) -> int:
    """Of 8 bits: some processors sum up products of bytes sooner where weights are small."""
    bounded = [b.within[1] for b in bounded_byte_products(target)]
    return min(bounded, default=MOST)


def _tell_nobody(stage: str, done: int, total: int) -> None:
    """There is nobody who watches."""


def _is_all(plan: Mapping[str, Option], options: Mapping[str, Sequence[Option]]) -> bool:
    """Does every layer have the form that saves most?"""
    best = {name: max(o.saved for o in own) for name, own in options.items() if own}
    return all(name in plan and plan[name].saved == saved for name, saved in best.items())


def _why(
    layer: Layer,
    chosen: Option | None,
    options: Sequence[Option],
    times: Mapping[LayerForm, FormTimes],
    forms: Sequence[LayerForm],
) -> str:
    saved = 0.0 if chosen is None else chosen.saved
    refused = [o for o in options if o.saved > saved]
    if refused:
        best = max(refused, key=lambda o: o.saved)
        more = "" if chosen is None else " more"
        return (
            f"{best.form} would save {(best.saved - saved) * 1e6:.0f} µs{more} and add an error of {best.error:.2%}:"
            " other layers save more for theirs"
        )
    if chosen is not None:
        return f"saves {chosen.saved * 1e6:.0f} µs" + (
            ", more than any other form" if len(options) > 1 else ""
        )
    own = {f: times[f].layers[layer.name] for f in forms if layer.can_be(f)}
    if not own:
        return "no form of this width fits it"
    quickest = min(own, key=lambda f: own[f])
    return f"floats are quicker: {quickest} takes {own[quickest] * 1e6:.0f} µs"
