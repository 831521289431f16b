"""`torch.compile(backend="neuron")`: one NEFF per graph and shape, numbers of eager, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_neuronx


class Counter(torch.nn.Module):
    """A layer that also counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(6, 10)
        self.down = torch.nn.Linear(10, 6)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        y = self.down(torch.relu(self.up(x)))
        return y, y.sum().cpu()


def graphs() -> list[tuple[object, object]]:
    return [(graph["role"], graph["cache_hit"]) for graph in torch_neuronx.get_dynamo_metrics()]


def test_the_backend_is_listed():
    assert "neuron" in torch._dynamo.list_backends()


@pytest.mark.slow
def test_inference_matches_eager_and_each_shape_is_one_neff(neff_cache: Path, fresh_dynamo):
    module = Counter().to("neuron:1")
    compiled = torch.compile(module, backend="neuron")
    with torch.no_grad():
        for rows in (4, 4, 3):
            x = torch.randn(rows, 6, device="neuron:1")
            y, total = compiled(x)
            torch.testing.assert_close(y, module.down(torch.relu(module.up(x))))
            assert (y.device, total.device) == (torch.device("neuron:1"), torch.device("cpu"))
            torch.testing.assert_close(total, y.sum().cpu())
    assert module.calls.item() == 3
    assert graphs() == [("inference", False), ("inference", False)]
    assert len(list(neff_cache.glob("MODULE_*/graph.pt2"))) == 2

    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()
    with torch.no_grad():
        torch.compile(module, backend="neuron")(torch.randn(3, 6, device="neuron:1"))
    assert graphs() == [("inference", True)]


@pytest.mark.slow
def test_training_has_a_forward_and_a_backward_graph_with_the_gradients_of_eager(
    neff_cache: Path, fresh_dynamo
):
    torch.manual_seed(0)
    module = Counter().to("neuron")
    x = torch.randn(4, 6, device="neuron", requires_grad=True)

    def gradients(run) -> list[torch.Tensor]:
        loss = run(x)[0].square().sum()
        return list(torch.autograd.grad(loss, [x, *module.parameters()]))

    expected = gradients(module)
    for got, want in zip(gradients(torch.compile(module, backend="neuron")), expected, strict=True):
        torch.testing.assert_close(got, want)
    assert graphs() == [("forward", False), ("backward", False)]


@pytest.mark.slow
def test_a_second_process_compiles_nothing(neff_cache: Path, run_python):
    program = (
        "import torch, torch_neuronx\n"
        "f = torch.compile(lambda x: torch.tanh(x) + 1, backend='neuron')\n"
        "print(f(torch.zeros(5, device='neuron')).tolist())\n"
        "print([graph['cache_hit'] for graph in torch_neuronx.get_dynamo_metrics()])\n"
    )
    assert run_python(program).splitlines() == ["[1.0, 1.0, 1.0, 1.0, 1.0]", "[False]"]
    # Without a C++ compiler on the path, nothing but the cache can answer.
    assert run_python(program, PATH="/nowhere", CXX="/nowhere/c++").splitlines()[1] == "[True]"


@pytest.mark.slow
def test_memory_inside_a_graph_is_charged_and_limited(neff_cache: Path, run_python):
    program = (
        "import torch\n"
        "f = torch.compile(lambda x: torch.sort(x.repeat(16), stable=True)[0].sum(), backend='neuron')\n"
        "x = torch.ones(2**20, device='neuron')\n"
        "print(f(x).item(), torch.neuron.max_memory_allocated() > 100 * 2**20)\n"
        "filler = torch.empty(400 * 2**20, dtype=torch.uint8, device='neuron')\n"
        "try: f(x)\n"
        "except torch.OutOfMemoryError as error: print(str(error)[:22])\n"
        "del filler\n"
        "print(f(x).item())\n"
    )
    output = run_python(program, SOFTNEURON_HBM_PER_CORE="512MiB").splitlines()
    assert output == ["16777216.0 True", "neuron:0 out of memory", "16777216.0"]


def test_level_zero_runs_the_graph_without_compiling(neff_cache: Path, fresh_dynamo):
    double = torch.compile(lambda x: x * 2, backend="neuron", options={"opt_level": "-O0"})
    assert double(torch.ones(3, device="neuron")).tolist() == [2, 2, 2]
    assert graphs() == [("inference", False)]
    assert not neff_cache.exists()


def test_dynamic_shapes_are_refused_with_what_to_do(neff_cache: Path, fresh_dynamo):
    compiled = torch.compile(lambda x: x * 2, backend="neuron", dynamic=True)
    with pytest.raises(Exception, match=r"static shapes only: dynamic=True is refused. Pass dynamic=False"):
        compiled(torch.ones(3, device="neuron"))


def test_an_unknown_option_is_named(neff_cache: Path, fresh_dynamo):
    compiled = torch.compile(lambda x: x * 2, backend="neuron", options={"speed": 9})
    with pytest.raises(Exception, match=r"no option 'speed': it reads model_name, fallback_execution"):
        compiled(torch.ones(3, device="neuron"))


def test_another_mode_warns_and_is_compiled_as_default(neff_cache: Path, fresh_dynamo, monkeypatch):
    monkeypatch.setenv("NEURON_COMPILER_OPT_LEVEL", "-O0")
    compiled = torch.compile(lambda x: x * 2, backend="neuron", mode="max-autotune")
    with pytest.warns(UserWarning, match="mode='max-autotune' is compiled as that"):
        assert compiled(torch.ones(3, device="neuron")).tolist() == [2, 2, 2]


def test_the_model_name_names_the_graph(neff_cache: Path, fresh_dynamo):
    options = {"opt_level": "-O0", "model_name": "tiny"}
    torch.compile(lambda x: x + 1, backend="neuron", options=options)(torch.ones(1, device="neuron"))
    assert torch_neuronx.get_dynamo_metrics()[0]["graph_name"] == "tiny_inference"


def test_a_tensor_made_inside_the_graph_is_a_constant_on_the_core(neff_cache: Path, fresh_dynamo):
    def last_row(x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor([-1], device=x.device)] * 2

    x = torch.arange(6.0).reshape(3, 2).to("neuron")
    compiled = torch.compile(last_row, backend="neuron", options={"opt_level": "-O0"})
    with torch.no_grad():
        result = compiled(x)
    assert result.device.type == "neuron"
    assert torch.equal(result.cpu(), torch.tensor([[8.0, 10.0]]))
