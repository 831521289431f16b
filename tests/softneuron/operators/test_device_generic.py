"""PyTorch's own device-generic machinery and databases of operators, modules and optimizers, on neuron.

The tests are instantiated for PyTorch's out-of-tree device, and every result
is compared with the CPU's to the last bit. `make op-coverage` runs all
operators; here is a sample with one of each family.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_map

from softneuron.diagnostics.op_cases import Case, Mover, difference, run_case

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLE = {
    "add", "addmm", "all", "amax", "arange", "argsort", "as_strided", "bernoulli", "bmm", "cat",
    "clamp", "conj_physical", "cumsum", "diagonal", "div", "einsum", "empty", "expand", "fft.rfft",
    "flip", "gather", "index_add", "index_put", "index_select", "linalg.qr", "linalg.svd",
    "logical_and", "masked_fill", "masked_scatter", "matmul", "max", "mode", "multinomial",
    "native_layer_norm", "new_zeros", "nn.functional.batch_norm", "nn.functional.conv2d",
    "nn.functional.cross_entropy", "nn.functional.dropout", "nn.functional.embedding",
    "nn.functional.embedding_bag", "nn.functional.gelu", "nn.functional.group_norm",
    "nn.functional.interpolate", "nn.functional.max_pool2d", "nn.functional.mish",
    "nn.functional.scaled_dot_product_attention", "nonzero", "pow", "rand_like",
    "repeat_interleave", "resize_", "roll", "scatter_reduce", "sgn", "softmax", "sort", "sparse.mm",
    "split", "std", "sum", "tensor_split", "topk", "transpose", "tril", "unique", "view", "where",
}  # fmt: skip


class TestDatabases(TestCase):
    @ops([op for op in op_db if op.name in SAMPLE], allowed_dtypes=DTYPES)
    def test_operator(self, device, dtype, op):
        outcome = run_case(Case(op.full_name, str(dtype).removeprefix("torch.")), most_samples=4)
        assert outcome.failures == []
        assert outcome.words == []
        assert outcome.tallies["forward"].ran > 0

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_module(self, device, dtype, module_info, training):
        torch.manual_seed(0)
        inputs = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for one in inputs:
            if one.forward_input is None:
                continue
            torch.manual_seed(1)
            arguments = one.constructor_input
            host = module_info.module_cls(*arguments.args, **arguments.kwargs).to(dtype).train(training)
            there = copy.deepcopy(host).to(device)
            results = []
            for module, place in ((host, "cpu"), (there, device)):
                args, kwargs = tree_map(Mover(place), (one.forward_input.args, one.forward_input.kwargs))
                torch.manual_seed(2)
                try:
                    results.append(module(*args, **kwargs))
                except Exception as error:
                    results.append(type(error))
            if isinstance(results[0], type):
                assert results[1] == results[0]
                continue
            assert difference(module_info.name, *results) is None

    @optims(optim_db, dtypes=(torch.float32,))
    def test_optimizer(self, device, dtype, optim_info):
        # PyTorch's default is one tensor at a time on the CPU and foreach on devices: say which.
        implementations = (
            [{"foreach": False}, {"foreach": True}] if "foreach" in optim_info.supported_impls else [{}]
        )
        for one in optim_info.optim_inputs_func(device="cpu", dtype=dtype):
            for implementation in implementations:
                ends = [
                    optimized(optim_info, place, {**one.kwargs, **implementation})
                    for place in ("cpu", device)
                ]
                assert difference("optimizer", *ends) is None, f"{one.desc} {implementation}"


def optimized(optim_info, place, options):
    """Parameters on `place` after three steps of an optimizer of the database."""
    torch.manual_seed(0)
    shapes = [(6, 4)] if optim_info.optim_cls is torch.optim.Muon else [(6, 4), (4,)]
    parameters = [torch.randn(shape).to(place).requires_grad_() for shape in shapes]
    moved = tree_map(lambda v: v.to(place) if isinstance(v, torch.Tensor) and v.dim() else v, options)
    optimizer = optim_info.optim_cls(parameters, **moved)

    def closure():
        optimizer.zero_grad()
        loss = sum(p.square().sum() + p.exp().sum() for p in parameters)
        loss.backward()
        if optim_info.only_supports_sparse_grads:
            for parameter in parameters:
                parameter.grad = parameter.grad.to_sparse()
        return loss

    for _ in range(3):
        if optim_info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return parameters


instantiate_device_type_tests(TestDatabases, globals(), only_for="privateuse1")
