"""Transforms, autocast, checkpointing, hooks and the profiler on a core, with the CPU's numbers."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.autograd.forward_ad as forward
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint


def cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


TRANSFORMS = {
    "grad": grad(cubes),
    "hessian": hessian(cubes),
    "jacfwd": jacfwd(torch.sin),
    "jacrev": jacrev(torch.sin),
    "jvp": lambda x: jvp(torch.sin, (x,), (x,))[1],
    "vjp": lambda x: vjp(torch.sin, x)[1](x)[0],
    "vmap": vmap(lambda x: x * x.cos()),
    "vmap of attention": lambda x: vmap(lambda y: torch.nn.functional.scaled_dot_product_attention(y, y, y))(
        x.expand(2, 4, 5, 6)
    ),
    "gradients per sample": lambda x: vmap(grad(cubes))(x.expand(3, 6)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_torch_func_has_the_cpus_numbers(transform):
    x = torch.randn(6)
    assert torch.equal(TRANSFORMS[transform](x.to("neuron")).cpu(), TRANSFORMS[transform](x))


def test_ensembles_and_random_numbers_under_vmap():
    layers = [torch.nn.Linear(3, 2).to("neuron") for _ in range(3)]
    parameters, buffers = stack_module_state(layers)
    skeleton, x = copy.deepcopy(layers[0]).to("meta"), torch.randn(1, 3, device="neuron")
    out = vmap(lambda p, b: functional_call(skeleton, (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(out, torch.stack([layer(x) for layer in layers]))
    rows = vmap(lambda y: torch.rand_like(y), randomness="different")(torch.zeros(2, 3, device="neuron"))
    assert not torch.equal(rows[0], rows[1])


def test_forward_mode_and_numerical_checks():
    x = torch.randn(3, dtype=torch.double, device="neuron", requires_grad=True)
    with forward.dual_level():
        dual = forward.make_dual(x, torch.ones_like(x))
        tangent = forward.unpack_dual(torch.exp(dual) * 2 + dual).tangent
    torch.testing.assert_close(tangent, 2 * torch.exp(x) + 1)
    assert torch.autograd.gradcheck(torch.sin, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(torch.sin, (x,))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_repeats_the_random_numbers(reentrant):
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)).to(
        "neuron"
    )
    gradients = []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=reentrant)):
        x = torch.ones(4, 8, device="neuron", requires_grad=True)
        torch.manual_seed(0)
        run(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_saved_tensors_can_wait_on_the_cpu(no_garbage):
    x = torch.randn(64, 64, device="neuron:3", requires_grad=True)
    before = torch.neuron.memory_allocated(3)
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="neuron"):
        loss = x.exp().sum()
    assert torch.neuron.memory_allocated(3) - before == loss.nbytes
    loss.backward()
    assert torch.equal(x.grad, x.exp())


def test_hooks_run():
    seen: list[str] = []
    module = torch.nn.Linear(3, 3).to("neuron")
    module.register_forward_hook(lambda *_: seen.append("forward"))
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    module.weight.register_hook(lambda gradient: seen.append(str(gradient.device)))
    module.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append("accumulated"))
    module(torch.ones(2, 3, device="neuron", requires_grad=True)).sum().backward()
    assert sorted(seen) == ["accumulated", "backward", "forward", "neuron:0"]


class Doubled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="neuron", cast_inputs=torch.float32)
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="neuron")
    def backward(ctx, gradient):
        return 2 * gradient


def test_autocast_has_cudas_lists():
    x = torch.randn(4, 4, device="neuron")
    with torch.autocast("neuron"):
        assert torch.is_autocast_enabled("neuron")
        assert (x @ x).dtype == torch.get_autocast_dtype("neuron") == torch.bfloat16
    with torch.autocast("neuron", dtype=torch.float16):
        assert torch.nn.functional.linear(x, x).dtype == torch.float16
        half = x.half()
        assert torch.nn.functional.layer_norm(half, (4,)).dtype == torch.float32
        assert half.softmax(-1).dtype == half.sum().dtype == half.exp().dtype == torch.float32
        assert torch.cat([x, half]).dtype == torch.float32
        assert torch.nn.LSTM(4, 4).to("neuron")(x)[0].dtype in (torch.float16, torch.float32)
        assert Doubled.apply(half.requires_grad_()).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            torch.nn.functional.binary_cross_entropy(x.sigmoid(), x.sigmoid())
        with torch.autocast("neuron", enabled=False):
            assert (x @ x).dtype == torch.float32
    with pytest.warns(UserWarning, match="In neuron autocast, but the target dtype is not supported"):
        torch.autocast("neuron", dtype=torch.float32)


def test_the_grad_scaler_skips_steps_that_overflow():
    scaler = torch.amp.GradScaler("neuron", init_scale=1024.0)
    module = torch.nn.Linear(4, 4).to("neuron")
    optimizer = torch.optim.SGD(module.parameters(), 0.1)

    def step(factor: float) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("neuron", dtype=torch.float16):
            loss = module(torch.ones(2, 4, device="neuron")).sum() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        gradient = module.weight.grad.clone()
        scaler.step(optimizer)
        scaler.update()
        return gradient

    before = module.weight.detach().clone()
    gradient = step(1.0)
    assert torch.equal(gradient, torch.full_like(gradient, 2.0))
    torch.testing.assert_close(module.weight, before - 0.1 * gradient)
    assert scaler.get_scale() == 1024
    before = module.weight.detach().clone()
    step(float("inf"))
    assert torch.equal(module.weight, before)
    assert scaler.get_scale() == 512
    scaler.load_state_dict(scaler.state_dict())


def test_the_profiler_shows_the_cores_work(tmp_path: Path):
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    x = torch.randn(64, 64)
    with profile(activities=activities, profile_memory=True) as profiler:
        on_core = x.to("neuron:1")
        product = on_core @ on_core
        product.cpu()
    (mm,) = [event for event in profiler.key_averages() if event.key == "aten::mm"]
    assert 0 < mm.self_device_time_total <= mm.cpu_time_total
    assert mm.self_device_memory_usage == product.nbytes
    assert "NEURON" in profiler.key_averages().table()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert [(event["name"], event["pid"]) for event in kernels] == [("neuron::mm", 1)]
    copies = [event["name"] for event in events if event.get("cat") == "gpu_memcpy"]
    assert copies == ["Memcpy HtoD", "Memcpy DtoH"]
    torch.neuron.synchronize()
    with profile(activities=[ProfilerActivity.CPU]) as on_host_alone:
        on_core @ on_core
    assert all(event.self_device_time_total == 0 for event in on_host_alone.key_averages())
