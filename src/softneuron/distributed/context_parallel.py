"""Ring attention on neuron for PyTorch's context parallelism, which knows CUDA's attention kernels only.

Called when `torch.distributed.tensor.experimental._context_parallel._attention` is imported: PyTorch's own
ring gets the attention kernel that neuron takes, the CPU's, with its backward pass. The ring itself (Ring
Attention, Liu et al. 2023), its exchange of keys and values and its load balancing are PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch

_SEQUENCE = 2
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def tell_context_parallel(attention: Any) -> None:
    """Add neuron's attention to the operators that context parallelism hands to its ring.

    Tensors are (batch, heads, sequence, head size), each rank holds a slice of the sequence.
    """

    def forward(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        query, key, value, dropout_p, is_causal = _filled(args, (0.0, False))
        mesh = _ring_of(query, key, value)
        _refuse(kwargs.get("attn_mask"), dropout_p)
        output, logsumexp = attention._templated_ring_attention(
            mesh.get_group(),
            _SEQUENCE,
            _ATTENTION,
            *(each.to_local() for each in (query, key, value)),
            is_causal=is_causal,
            scale=kwargs.get("scale"),
        )
        return tuple(_sliced(local, mesh) for local in (output, logsumexp))

    def backward(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        *tensors, dropout_p, is_causal = args
        mesh = _ring_of(*tensors)
        _refuse(kwargs.get("attn_mask"), dropout_p)
        grad_out, query, key, value, out, logsumexp = (each.to_local() for each in tensors)
        gradients = attention._templated_ring_attention_backward(
            mesh.get_group(),
            _SEQUENCE,
            _attention_backward,
            grad_out=grad_out,
            grad_out_name="grad_out",
            query=query,
            key=key,
            value=value,
            out=out,
            logsumexp=logsumexp,
            is_causal=is_causal,
            scale=kwargs.get("scale"),
        )
        return tuple(_sliced(local, mesh) for local in gradients)

    attention.custom_ops |= {_ATTENTION.default: forward, _BACKWARD.default: backward}


def _attention_backward(
    *,
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    is_causal: bool,
    scale: float | None,
) -> Any:
    """The kernel's backward pass; the ring names its arguments, and the kernel takes dropout between them."""
    return _BACKWARD(grad_out, query, key, value, out, logsumexp, 0.0, is_causal, scale=scale)


def _filled(args: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operator's five positional arguments, with the defaults of those that the caller left out."""
    return args + defaults[len(args) - 3 :]


def _ring_of(*tensors: Any) -> Any:
    """The one-dimensional mesh whose ranks hold slices of every tensor's sequence.

    Raises:
        NotImplementedError: for tensors that are laid out in another way.
    """
    from torch.distributed.tensor import Shard

    mesh = tensors[0].device_mesh
    if mesh.ndim != 1 or any(tuple(each.placements) != (Shard(_SEQUENCE),) for each in tensors):
        layouts = ", ".join(str(each.placements) for each in tensors)
        raise NotImplementedError(
            "context parallelism on neuron takes queries, keys and values that are sharded along the "
            f"sequence (dimension {_SEQUENCE}) of a one-dimensional mesh, not {layouts}"
        )
    return mesh


def _refuse(mask: Any, dropout_p: float) -> None:
    if mask is not None or dropout_p:
        raise NotImplementedError("context parallelism on neuron has no attention mask and no dropout")


def _sliced(local: torch.Tensor, mesh: Any) -> Any:
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(local, mesh, [Shard(_SEQUENCE)], run_check=False)
