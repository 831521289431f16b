"""What callers import as `torch_neuronx.neuron_dynamo_backend`: helpers around `torch.compile`."""

from __future__ import annotations

from softneuron.diagnostics.metrics import get_dynamo_metrics, get_fallback_graphs, reset_dynamo_metrics
from softneuron.diagnostics.naming import set_model_name

__all__ = ["get_dynamo_metrics", "get_fallback_graphs", "reset_dynamo_metrics", "set_model_name"]
