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


def test_a_size_that_depends_on_data_is_refused_with_its_line(neff_cache: Path, fresh_dynamo):
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    compiled = torch.compile(positive, backend="neuron", fullgraph=True)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.raises(
            Exception, match=r"data-dependent size \(.*test_backend.py:\d+: return x\[x > 0\] \* 2\)"
        ),
    ):
        compiled(torch.tensor([1.0, -1.0], device="neuron"))


@pytest.fixture
def no_code_for_erfinv(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    def refuse(*_: object) -> None:
        raise NotImplementedError("no code for this")

    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.erfinv.default, refuse)


def test_a_graph_that_cannot_be_compiled_names_operator_and_line(
    neff_cache: Path, fresh_dynamo, no_code_for_erfinv
):
    compiled = torch.compile(lambda x: torch.erfinv(x / 8), backend="neuron")
    expected = (
        r"aten.erfinv.default \(.*test_backend.py:\d+: .*erfinv.*\): NotImplementedError: no code for this"
    )
    with pytest.raises(Exception, match=expected):
        compiled(torch.ones(3, device="neuron"))
    assert graphs() == []


def test_a_graph_that_falls_back_does_not_count_as_compiled(
    neff_cache: Path, fresh_dynamo, no_code_for_erfinv, monkeypatch
):
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    x = torch.full((3,), 0.5, device="neuron")
    compiled = torch.compile(lambda x: torch.erfinv(x * 1), backend="neuron")
    assert torch.equal(compiled(x), torch.erfinv(x))
    assert graphs() == []
    [fallback] = torch_neuronx.get_fallback_graphs()
    assert (fallback["role"], fallback["shapes"]) == ("inference", ["float32[3]"])
    assert "aten.erfinv.default" in str(fallback["reason"])
    assert "graph:model_inference" in torch_neuronx.get_fallback_ops()
    torch_neuronx.clear_op_tracking()


def test_a_graph_over_two_cores_is_refused_and_runs_operator_by_operator_where_that_is_asked_for(
    neff_cache: Path, fresh_dynamo, monkeypatch
):
    def over_two_cores(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).to("neuron:1").sin()

    x = torch.tensor([0.25, 0.5], device="neuron:0")
    expected = 'SeveralCores: .* tensors on neuron:0, neuron:1\n.*device_map="neuron".*FALLBACK_EXECUTION=0'
    with pytest.raises(Exception, match=expected):
        torch.compile(over_two_cores, backend="neuron")(x)
    assert torch_neuronx.get_fallback_graphs() == []

    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    torch._dynamo.reset()
    x.requires_grad_()
    result = torch.compile(over_two_cores, backend="neuron")(x)
    result.sum().backward()
    assert result.device == torch.device("neuron:1")
    assert torch.equal(result.cpu(), torch.tensor([0.5, 1.0]).sin())
    assert torch.equal(x.grad.cpu(), 2 * torch.tensor([0.5, 1.0]).cos())
    assert graphs() == []
    fallbacks = torch_neuronx.get_fallback_graphs()
    assert {fallback["reason"] for fallback in fallbacks} == {
        "a compiled graph runs on one core, and this one has tensors on neuron:0, neuron:1"
    }
    assert [fallback["role"] for fallback in fallbacks] == ["forward", "backward"]
    torch_neuronx.clear_op_tracking()


@pytest.mark.slow
def test_constants_and_branches_are_compiled(neff_cache: Path, fresh_dynamo):
    def branch(x: torch.Tensor) -> torch.Tensor:
        weights = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        return torch.cond(x.sum() > 0, lambda x: x + weights, lambda x: x - weights, (x,))

    compiled = torch.compile(branch, backend="neuron", fullgraph=True)
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign, device="neuron")
        assert torch.equal(compiled(x), branch(x))
    assert graphs() == [("inference", False)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_whole_numbers_are_counted_as_eager_counts_them(dtype, neff_cache: Path, fresh_dynamo, monkeypatch):
    """Mixtures of experts count the tokens of each expert so; the CPU has no kernel for it."""
    monkeypatch.setenv("NEURON_COMPILER_OPT_LEVEL", "-O0")
    values = torch.tensor([3, 1, 0, 7, 7, 30, 12, 3, 99, 29, 100], dtype=dtype, device="neuron")
    ranges = [(8, 0, 7), (100, 0, 100), (10, 0, 100), (3, 2, 30), (5, 0, 0), (4, 7, 7)]

    def count(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.histc(x, bins=bins, min=low, max=high) for bins, low, high in ranges]

    for mine, theirs in zip(torch.compile(count, backend="neuron")(values), count(values), strict=True):
        assert mine.dtype == dtype
        assert mine.tolist() == theirs.tolist()
    assert graphs() == [("inference", False)]


def test_without_a_backend_the_tensors_device_decides(neff_cache: Path, fresh_dynamo, monkeypatch):
    monkeypatch.setenv("NEURON_COMPILER_OPT_LEVEL", "-O0")
    assert torch.compile(lambda x: x * 2)(torch.ones(2, device="neuron")).tolist() == [2, 2]
    assert graphs() == [("inference", False)]


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


def test_an_input_in_a_layout_of_its_own_is_refused(neff_cache: Path, fresh_dynamo):
    compiled = torch.compile(lambda x, y: x.to_dense() + y.cpu(), backend="neuron")
    with pytest.raises(Exception, match=r"takes no input in the layout torch\._mkldnn: call to_dense\(\)"):
        compiled(torch.eye(3).to_mkldnn(), torch.ones(3, 3, device="neuron"))
