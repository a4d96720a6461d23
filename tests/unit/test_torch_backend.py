"""`torch.compile(backend="tilewright")` and `from_torch`: what runs where, and that it is always what eager gives."""

import logging
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
import tilewright.dynamo as td  # noqa: E402
from tilewright.frontend.onnx.held_model import HeldModel  # noqa: E402
from tilewright.support.errors import UserError  # noqa: E402

nn = torch.nn

# torch's own: of a future release of itself, and of what it imports
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    td.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=td.compile_fx_graph, **options)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_perceptron_is_one_program_with_its_weights_in_it() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    run, x = compiled(model), torch.randn(3, 8)
    close(run(x), model(x))
    (report,) = td.reports()
    assert (report.programs, report.left) == (1, ())


def test_results_are_the_callers_own() -> None:
    run = compiled(lambda x: x * 2)
    x = torch.ones(4)
    first = run(x)
    x.fill_(5)
    second = run(x)
    assert first.tolist() == [2] * 4
    assert second.tolist() == [10] * 4
    first.add_(1)
    assert second.tolist() == [10] * 4


def test_strides_of_inputs_do_not_matter() -> None:
    run = compiled(lambda x, y: x @ y + 1)
    x, y = torch.randn(4, 6).t(), torch.randn(8, 10)[::2, ::2]
    close(run(x, y), x @ y + 1)


def test_what_is_written_to_an_input_is_there_afterwards() -> None:
    def step(x: Any, y: Any) -> Any:
        x.add_(y)
        return x * 2

    a, b, y = torch.ones(3), torch.ones(3), torch.arange(3.0)
    close(compiled(step)(a, y), step(b, y))
    close(a, b)


def test_a_view_of_an_input_is_one() -> None:
    run = compiled(lambda x: (x.view(2, 2), x + 1))
    x = torch.arange(4.0)
    view, more = run(x)
    x.fill_(9)
    assert view.tolist() == [[9, 9], [9, 9]]
    assert more.tolist() == [1, 2, 3, 4]


def test_changed_weights_are_seen() -> None:
    model = nn.Linear(4, 4).eval()
    run, x = compiled(model), torch.randn(2, 4)
    close(run(x), model(x))
    model.weight.mul_(2)
    close(run(x), model(x))
    model.weight.data = torch.randn(4, 4)
    close(run(x), model(x))
    assert td.reports()[0].builds == ["the first call", "weights have changed", "weights have changed"]


def test_weights_that_change_time_and_again_become_inputs() -> None:
    model = nn.Linear(4, 4).eval()
    run, x = compiled(model), torch.randn(2, 4)
    for _ in range(8):
        model.weight.add_(1)
        close(run(x), model(x))
    assert len(td.reports()[0].builds) == 5


def test_statistics_of_batches_are_kept_up() -> None:
    a, b = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    run, x = compiled(a), torch.randn(6, 4)
    for _ in range(2):
        close(run(x), b(x))
    close(a.running_mean, b.running_mean)
    assert a.num_batches_tracked == 2


def test_gradients_are_left_to_pytorch_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 2)
    run, x = compiled(model), torch.randn(3, 4)
    with torch.enable_grad(), caplog.at_level(logging.WARNING, "tilewright"):
        run(x).sum().backward()
        run(x).sum().backward()
    close(model.weight.grad, 2 * x.sum(0).expand(2, 4))
    assert [r.message for r in caplog.records].count(
        "a graph of 1 calls is left to PyTorch: gradients are asked for; run it under torch.no_grad() or "
        "torch.inference_mode()"
    ) == 1


def test_inference_mode_is_fine() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 4).eval()
        x = torch.randn(2, 4)
        close(compiled(model)(x), model(x))


def test_an_unsupported_operator_runs_in_pytorch_between_programs(caplog: pytest.LogCaptureFixture) -> None:
    def model(x: Any) -> Any:
        y = torch.relu(x @ x.t())
        return torch.linalg.inv(y + 3 * torch.eye(4)).abs() + 1

    x = torch.randn(4, 4)
    with caplog.at_level(logging.WARNING, "tilewright"):
        close(compiled(model)(x), model(x))
    (report,) = td.reports()
    assert report.programs == 2
    assert any("linalg_inv" in c.operator for c in report.left)
    assert "linalg_inv" in caplog.text
    assert "linalg_inv" in str(report)


def test_random_numbers_are_pytorchs() -> None:
    run = compiled(lambda x: torch.nn.functional.dropout(x, 0.5, True) * 2)
    got = run(torch.ones(64))
    assert set(got.tolist()) <= {0.0, 4.0}
    assert 0 < int((got == 0).sum()) < 64


def test_a_tensor_made_of_a_number_is_a_constant() -> None:
    def scaled(x: Any) -> Any:
        return x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)

    x = torch.randn(4, 64)
    with torch.inference_mode():
        close(compiled(scaled)(x), scaled(x))
    (report,) = td.reports()
    assert (report.programs, report.left) == (1, ())


def test_open_dimensions_are_one_program() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    run = compiled(model, dynamic=True)
    for n in (3, 5, 40, 64):
        x = torch.randn(n, 8)
        got = run(x)
        assert got.is_contiguous()
        close(got, model(x))
    (report,) = td.reports()
    assert report.builds == ["the first call"]
    x = torch.randn(300, 8)
    close(run(x), model(x))
    assert len(report.builds) == 2
    assert "is 300, outside of" in report.builds[1]


def test_arithmetic_on_open_sizes() -> None:
    def model(x: Any) -> Any:
        b, n, d = x.shape
        return (x.reshape(b * n, d).softmax(-1).reshape(b, n * d) * n)[:, : n // 2], b

    run = compiled(model, dynamic=True)
    for shape in ((2, 6, 4), (3, 10, 4), (5, 8, 4)):
        x = torch.randn(*shape)
        got, want = run(x), model(x)
        close(got[0], want[0])
        assert got[1] == want[1]


def test_a_number_that_no_shape_tells() -> None:
    run = compiled(lambda x, n: x * n, dynamic=True)
    x = torch.randn(4)
    for n in (2, 7, 9):
        close(run(x, n), x * n)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool"])
def test_element_types(name: str) -> None:
    dtype = getattr(torch, name)
    x = torch.tensor([[0, 1], [3, 2]]).to(dtype)
    run = compiled(lambda x: (torch.where(x > 1, x, x), x == x.t()))
    got, want = run(x), (x, x == x.t())
    assert got[0].dtype == dtype
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert td.reports()[0].why_eager == ""


def test_complex_numbers_are_left_to_pytorch() -> None:
    run = compiled(lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j) + 1)
    x = torch.randn(3, 2)
    close(run(x), torch.view_as_real(torch.view_as_complex(x) * 2j) + 1)


def test_threads_are_pytorchs() -> None:
    before = torch.get_num_threads()
    run, x = compiled(lambda x: x.exp()), torch.randn(4)
    run(x)
    try:
        torch.set_num_threads(before + 1)
        close(run(x), x.exp())
    finally:
        torch.set_num_threads(before)
    # torch.compile guards the number itself, so that there is another graph
    assert sum(len(r.builds) for r in td.reports()) == 2


def test_explain_says_what_became_of_a_model() -> None:
    found = td.explain(nn.Linear(4, 4), torch.randn(2, 4))
    assert "1 native programs" in str(found)


def test_the_backend_is_known_by_name() -> None:
    td.register()
    td.register()  # again changes nothing
    assert "tilewright" in torch._dynamo.list_backends()


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    place = project["entry-points"]["torch_dynamo_backends"]["tilewright"]
    assert EntryPoint("tilewright", place, "torch_dynamo_backends").load() is td.compile_fx_graph


# ---------------------------------------------------------------------------------------------------------- from_torch


class Net(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 6, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Any, *, scale: Any) -> dict[str, Any]:
        y, h = self.gru(x)
        return {"y": self.norm(y) * scale, "h": h}


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export's, of any GRU
def test_a_module_becomes_a_session() -> None:
    model = Net().eval()
    x, scale = torch.randn(2, 5, 8), torch.tensor(2.0)
    session = tw.from_torch(model, (x,), kwargs={"scale": scale})
    got, want = session(x, scale=scale), model(x, scale=scale)
    close(got["y"], want["y"])
    close(got["h"], want["h"])
    ops = {n.op_type for n in session.onnx.graph.node}
    assert {"GRU", "LayerNormalization"} <= ops
    assert any(n.name.startswith("gru/") for n in session.onnx.graph.node)


def test_an_exported_program_with_open_dimensions() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1)).eval()
    batch = torch.export.Dim("batch", min=2, max=32)
    program = torch.export.export(model, (torch.randn(4, 8),), dynamic_shapes=({0: batch},))
    session = tw.from_torch(program)
    for n in (2, 7, 32):
        x = torch.randn(n, 8)
        close(session(x), model(x))


def test_the_model_of_a_session_can_be_compiled_and_compared() -> None:
    model = nn.Linear(64, 64).eval()
    session = tw.from_torch(model, (torch.randn(2, 64),))
    x = np.ones((2, 64), np.float32)
    name = session.session.inputs[0].name
    again = tw.load(session.onnx).run({name: x})
    (want,) = session.session.run({name: x}).values()
    np.testing.assert_allclose(next(iter(again.values())), want, rtol=1e-5, atol=1e-5)
    assert tw.compile(session.model).artifact.constants


def test_unsupported_operators_of_an_export_are_all_named() -> None:
    class Inverse(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.linalg.inv(x)

    with pytest.raises(UserError, match="linalg_inv"):
        tw.from_torch(Inverse(), (torch.eye(3),))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UserError, match=r"not a torch\.nn\.Module"):
        tw.from_torch(lambda x: x, (torch.ones(1),))


def test_other_arguments_than_exported_are_refused() -> None:
    session = tw.from_torch(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    with pytest.raises(UserError, match="exported for"):
        session(torch.randn(2, 4), torch.randn(2, 4))


def test_weights_beside_a_model_decide_its_digest() -> None:
    session = tw.from_torch(nn.Linear(64, 64).eval(), (torch.randn(2, 64),))
    held = session.model
    assert held.weights
    changed = HeldModel(held.proto, {t: a + 1 for t, a in held.weights.items()})
    assert changed.digest != held.digest
    assert HeldModel(held.proto, dict(held.weights)).digest == held.digest
    assert held.proto.ByteSize() < 4096 < held.whole().ByteSize()


def test_a_model_that_is_too_large_for_protobuf_says_so() -> None:
    session = tw.from_torch(nn.Linear(64, 64).eval(), (torch.randn(2, 64),))
    token = next(iter(session.model.weights))
    huge = np.broadcast_to(np.zeros(1, np.float32), (1 << 30,))
    with pytest.raises(UserError, match="one protobuf holds"):
        HeldModel(session.model.proto, {token: huge}).whole()
