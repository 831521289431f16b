"""Traces kept in the NEFF cache: a later process traces nothing, and never runs another graph's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch_neuronx
from torch.testing._internal.two_tensor import TwoTensor

from softneuron.compiler import graph, traces
from softneuron.compiler.cache import NeffCache
from softneuron.compiler.options import Options


def hits() -> list[object]:
    return [one["cache_hit"] for one in torch_neuronx.get_dynamo_metrics()]


def start_afresh() -> None:
    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()


@contextmanager
def traced_times(times: int) -> Iterator[None]:
    """Fails unless AOTAutograd hands over `times` graphs that it traced."""
    with mock.patch.object(graph, "lower", wraps=graph.lower) as lower:
        yield
    assert lower.call_count == times


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("traces/*/*/*"))


@pytest.mark.slow
def test_a_trace_is_used_again_unless_it_or_its_neff_is_damaged(neff_cache: Path, fresh_dynamo):
    x = torch.randn(5, 3, device="neuron")

    def check() -> None:
        start_afresh()
        y, same = torch.compile(lambda x: (torch.tanh(x) @ x.T, x), backend="neuron")(x)
        torch.testing.assert_close(y, torch.tanh(x) @ x.T)
        assert same is x

    with traced_times(1):
        check()
    assert hits() == [False]
    (entry,) = entries(neff_cache)
    with traced_times(0):
        check()
    assert hits() == [True]
    (record,) = torch_neuronx.get_dynamo_metrics()
    assert (record["role"], record["shapes"], record["graph_node_count"]) == (
        "inference",
        ["float32[5, 3]"],
        3,
    )

    for damage in (lambda content: content[:40], lambda content: content[:99] + b"!" + content[100:]):
        whole = entry.read_bytes()
        entry.write_bytes(damage(whole))
        with traced_times(1):
            check()
        assert hits() == [True]
        (entry,) = entries(neff_cache)
        with traced_times(0):
            check()

    (package,) = neff_cache.glob("MODULE_*/graph.pt2")
    package.write_bytes(b"no machine code")
    with traced_times(1):
        check()
    assert hits() == [False]
    with traced_times(0):
        check()

    NeffCache(neff_cache).remove_traces()
    with traced_times(1):
        check()
    assert hits() == [True]


@pytest.mark.slow
def test_inputs_that_share_memory_have_a_trace_of_their_own(neff_cache: Path, fresh_dynamo):
    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    def outcome(step: Callable[..., torch.Tensor], first: int, second: int) -> list[list[float]]:
        memory = torch.arange(8.0, device="neuron")
        product = step(memory[first : first + 4], memory[second : second + 4])
        return [product.tolist(), memory.tolist()]

    for first, second in ((0, 4), (0, 0), (0, 2)):
        for _ in range(2):
            start_afresh()
            compiled = torch.compile(step, backend="neuron")
            assert outcome(compiled, first, second) == outcome(step, first, second)


def captured(
    function: Callable[..., object], *inputs: torch.Tensor
) -> tuple[torch.fx.GraphModule, list[object]]:
    """The graph that Dynamo makes of `function`, and its inputs."""
    found: list[tuple[torch.fx.GraphModule, list[object]]] = []

    def keep(gm: torch.fx.GraphModule, example_inputs: list[object]) -> torch.fx.GraphModule:
        found.append((gm, example_inputs))
        return gm

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(*inputs)
    return found[0]


def test_what_a_name_does_not_hold_is_not_kept(fresh_dynamo):
    weight = torch.randn(3, device="neuron")
    assert traces.can_be_kept(*captured(lambda x: x.exp() + weight, weight))

    operator = torch.library.custom_op(
        "softneuron_tests::thrice", lambda x: x * 3, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    operator.register_fake(torch.empty_like)
    gm, inputs = captured(lambda x: operator(x) + 1, weight)
    assert not traces.can_be_kept(gm, inputs)

    trained = weight.clone().requires_grad_()
    gm, inputs = captured(lambda x: x.exp(), trained)
    assert not traces.can_be_kept(gm, inputs)
    with torch.no_grad():
        assert traces.can_be_kept(gm, inputs)

    holding = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    assert not traces.can_be_kept(holding, [])
    with_constant = torch.fx.Graph()
    with_constant.output(with_constant.get_attr("constant"))
    module = torch.fx.GraphModule({"constant": torch.ones(2)}, with_constant)
    assert not traces.can_be_kept(module, [])


def test_inputs_of_which_the_name_tells_too_little():
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("x"))
    gm = torch.fx.GraphModule({}, graph)
    x = torch.ones(2, 2)
    assert traces.can_be_kept(gm, [x])
    assert not traces.can_be_kept(gm, [x, TwoTensor(x, x)])
    assert not traces.can_be_kept(gm, [x.to_mkldnn()])


def test_a_program_that_replaces_an_operator_of_aten_keeps_no_traces(run_python):
    assert run_python(
        """
import torch
from softneuron.compiler import traces
from softneuron.compiler.options import Options

graph = torch.fx.Graph()
graph.output(graph.placeholder("x"))
gm = torch.fx.GraphModule({}, graph)
before = traces._setting(Options(), [])
print(traces.can_be_kept(gm, []))
library = torch.library.Library("aten", "IMPL")
library.impl("narrow", lambda x, *where: x, "CompositeImplicitAutograd", allow_override=True)
print(traces.can_be_kept(gm, []), traces._setting(Options(), []) == before)
library.impl("narrow", lambda x, *where: x, "AutogradPrivateUse1")
print(traces.can_be_kept(gm, []))
"""
    ).split() == ["True", "True", "False", "False"]


def test_a_collective_belongs_to_this_process():
    gathering = torch.fx.Graph()
    x = gathering.placeholder("x")
    gathering.output(gathering.call_function(torch.ops._c10d_functional.wait_tensor.default, (x,)))
    assert not traces.can_be_kept(torch.fx.GraphModule({}, gathering), [])


def test_a_setting_that_tracing_depends_on_has_a_folder_of_its_own():
    x = torch.ones(2, device="neuron")
    settings = [
        traces._setting(Options(), [x]),
        traces._setting(Options(model_name="other"), [x]),
        traces._setting(Options(), [x, x[:1]]),
    ]
    with torch.neuron.device(1):
        settings.append(traces._setting(Options(), [x]))
    with mock.patch.object(traces, "model_name", return_value="renamed"):
        settings.append(traces._setting(Options(), [x]))
    with torch.inference_mode():
        settings.append(traces._setting(Options(), [x]))
    with torch.device("neuron"):
        settings.append(traces._setting(Options(), [x]))
    torch.set_default_dtype(torch.float64)
    try:
        settings.append(traces._setting(Options(), [x]))
    finally:
        torch.set_default_dtype(torch.float32)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        settings.append(traces._setting(Options(), [x]))
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert len(set(settings)) == len(settings)
    assert traces._setting(Options(), [x]) == settings[0]
    # PyTorch's own name holds the inputs' shapes.
    assert traces._setting(Options(), [x, torch.ones(1)]) == settings[0]


def test_a_folder_that_takes_nothing_is_no_error(tmp_path: Path):
    (tmp_path / "traces").write_text("not a folder")
    folder = traces._Folder(tmp_path, "setting")
    folder.write("key", b"content")
    assert not Path(folder.of_key("key")).exists()


def test_a_damaged_entry_that_cannot_be_removed_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = traces._Folder(tmp_path, "setting")
    folder.write("key", b"content")
    (entry,) = entries(tmp_path)
    assert folder.of_key("key") == str(entry.parent)
    entry.write_bytes(b"something else")

    def refuse(path: Path) -> None:
        raise PermissionError(f"{path} is on a read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert not Path(folder.of_key("key")).exists()
