"""What cannot be done is said in PyTorch's words, and the device is called neuron."""

from __future__ import annotations

import pytest
import torch

ONE, TWO = "neuron:0", "neuron:1"
SAME = "Expected all tensors to be on the same device"


@pytest.mark.parametrize("other", [TWO, "cpu"])
@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: a + b,
        lambda a, b: a.add_(b),
        lambda a, b: a @ b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.nn.functional.linear(a, b),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: torch._foreach_add([a], [b]),
    ],
    ids=["add", "add_", "matmul", "cat", "linear", "out", "where", "foreach"],
)
def test_tensors_on_two_devices(call, other):
    with pytest.raises(RuntimeError, match=SAME):
        call(torch.ones(2, 2, device=ONE), torch.ones(2, 2, device=other))


def test_a_number_on_the_cpu_is_welcome_where_pytorch_allows_it():
    x = torch.ones(2, device=ONE)
    assert (x * torch.tensor(3.0)).tolist() == [3, 3]
    assert torch.where(x > 0, x, torch.tensor(0.0)).device.type == "neuron"
    with pytest.raises(RuntimeError, match=SAME):
        torch.tensor(3.0).add_(x[0])


def test_indices_may_be_on_the_host_but_not_on_another_core():
    x = torch.arange(4, device=ONE)
    assert x[torch.tensor([3, 0])].tolist() == [3, 0]
    with pytest.raises(RuntimeError, match=SAME):
        x[torch.tensor([0], device=TWO)]


def test_a_missing_kernel_is_missing_on_neuron():
    library = torch.library.Library("softneuron_test", "DEF")
    library.define("nowhere(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match=r"'softneuron_test::nowhere'.*'neuron' backend"):
        torch.ops.softneuron_test.nowhere(torch.ones(1, device=ONE))


def test_a_missing_dtype_is_missing_on_neuron():
    with pytest.raises(RuntimeError, match="_neuron_\" not implemented for 'Bool'"):
        torch.mm(
            torch.ones(2, 2, dtype=torch.bool, device=ONE), torch.ones(2, 2, dtype=torch.bool, device=ONE)
        )


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda d: torch.ones(2, device=d)[5], IndexError),
        (lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d), RuntimeError),
        (lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)), torch.linalg.LinAlgError),
        (lambda d: torch.ones(2, device=d).view(3), RuntimeError),
        (lambda d: torch.ones(2, dtype=torch.bool, device=d).lgamma_(), RuntimeError),
        (lambda d: torch.multinomial(torch.tensor([-1.0, 1], device=d), 1), RuntimeError),
        (
            lambda d: torch.nn.functional.embedding(torch.tensor([9], device=d), torch.ones(2, 2, device=d)),
            IndexError,
        ),
    ],
)
def test_wrong_input_gives_the_cpus_error(call, kind):
    with pytest.raises(kind) as host:
        call("cpu")
    with pytest.raises(kind) as device:
        call(ONE)
    assert str(device.value) == str(host.value)
