"""Views, in-place writes and `out=`: who shares memory with whom, as on the CPU."""

from __future__ import annotations

import pytest
import torch

BOTH = ["cpu", "neuron"]


def run_both(program):
    """`program(device)` gives plain values; they have to be the same on both."""
    host, device = (program(name) for name in BOTH)
    assert device == host
    return host


def test_views_write_through():
    def program(device):
        base = torch.arange(12.0, device=device)
        base.view(3, 4)[1].mul_(10)
        base[::2].neg_()
        base.as_strided((2, 2), (1, 3), 5).add_(100)
        base.view(3, 4).t()[0].zero_()
        return base.tolist()

    run_both(program)


def test_a_view_taken_before_a_resize_keeps_its_values():
    def program(device):
        base = torch.arange(4.0, device=device)
        view = base[1:3]
        base.resize_(64)
        base[:4] = -1
        return view.tolist(), tuple(base.shape), base.untyped_storage().nbytes()

    run_both(program)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("shape", [(0,), (3,), (7,), ()])
def test_out_is_resized_and_its_storage_follows(shape):
    def program(device):
        out = torch.full(shape, 9.0, device=device)
        result = torch.add(torch.ones(3, device=device), 1, out=out)
        return result is out, out.tolist(), out.untyped_storage().nbytes()

    run_both(program)


def test_an_input_given_as_out_as_well_is_known_as_the_same_tensor():
    def program(device):
        x = torch.ones(5, 1, device=device)
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape") as error:
            torch.logical_and(x, torch.ones(5, 5, device=device), out=x)
        return str(error.value), tuple(x.shape)

    run_both(program)


def test_set_shares_a_storage():
    def program(device):
        base = torch.arange(6.0, device=device)
        window = torch.empty(0, device=device).set_(base.untyped_storage(), 1, (2, 2), (2, 1))
        window += 10
        twin = torch.empty(0, device=device).set_(base)
        twin[0] = -1
        return base.tolist(), window.storage_offset()

    run_both(program)


def test_set_refuses_memory_of_another_device():
    with pytest.raises(RuntimeError, match="neuron"):
        torch.empty(0, device="neuron").set_(torch.ones(3).untyped_storage())


def test_strides_of_results_are_the_cpus():
    def program(device):
        image = torch.ones(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
        outputs = [
            image + 1,
            torch.nn.functional.conv2d(image, torch.ones(6, 3, 2, 2, device=device)),
            torch.nn.functional.max_pool2d(image, 2),
            image.sum(1),
            image.transpose(1, 2).contiguous(),
            torch.empty_like(image),
            torch.fft.rfft2(image),
        ]
        return [(tuple(t.shape), t.stride()) for t in outputs]

    run_both(program)


def test_tensors_without_elements_and_without_dimensions():
    def program(device):
        empty, scalar = torch.ones(0, 3, device=device), torch.tensor(2.5, device=device)
        return (
            empty.sum().item(),
            (empty @ torch.ones(3, 0, device=device)).shape,
            torch.cat([empty, torch.ones(1, 3, device=device)]).tolist(),
            scalar.add(1).item(),
            scalar.expand(3).tolist(),
            torch.nonzero(empty).shape,
            empty.max(1).values.shape,
        )

    run_both(program)


def test_conjugate_and_negative_views_are_lazy_and_right():
    def program(device):
        z = torch.tensor([1 + 2j, 3 - 1j], device=device)
        conjugate = z.conj()
        negative = conjugate.imag
        z.mul_(2)
        return (
            conjugate.is_conj(),
            negative.is_neg(),
            conjugate.tolist(),
            negative.tolist(),
            (conjugate @ z).item(),
        )

    run_both(program)


def test_data_dependent_sizes():
    def program(device):
        x = torch.tensor([3, 1, 3, 0, 1], device=device)
        values, counts = x.unique(return_counts=True)
        return (
            values.tolist(),
            counts.tolist(),
            x.nonzero().tolist(),
            x[x > 1].tolist(),
            torch.repeat_interleave(x, x).tolist(),
            torch.bincount(x).tolist(),
            torch.masked_select(x, x == 1).tolist(),
        )

    run_both(program)


def test_an_error_in_place_leaves_the_tensor_as_it_was():
    def program(device):
        x = torch.ones(2, device=device)
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(3, device=device))
        return x.tolist(), tuple(x.shape)

    run_both(program)
