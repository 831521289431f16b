"""Every name of `torch.neuron` is in the docs, and every name of `torch.cuda` that it lacks."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[3] / "docs" / "device.md"
# Device-independent names that the libraries of the field read from a device's module.
EXPECTED = {
    *("is_available", "device_count", "current_device", "set_device", "synchronize", "get_device_name"),
    *("get_device_properties", "get_device_capability", "is_bf16_supported", "manual_seed"),
    *("manual_seed_all", "get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all"),
    *("empty_cache", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "memory_stats"),
    *("memory_summary", "memory_snapshot", "Stream", "Event", "current_stream", "stream"),
    "get_dynamo_metrics",
}


def section(title: str) -> str:
    """The text under a heading of docs/device.md."""
    parts = re.split(r"^(## .+|### .+)$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        if heading.lstrip("# ") == title:
            return text
    raise AssertionError(f"docs/device.md has no section {title!r}")


def names_in(text: str) -> list[str]:
    """The names in the rows of a section's table."""
    rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    return re.findall(r"`([A-Za-z_]\w*)`", rows)


def test_the_docs_list_every_public_name_once_and_no_other():
    listed = names_in(section("torch.neuron"))
    assert sorted(listed) == sorted(torch.neuron.__all__)
    assert set(listed) >= EXPECTED


def test_every_name_of_cuda_is_here_or_has_a_reason():
    assert sorted(names_in(section("Names of torch.cuda that are not here"))) == sorted(
        set(torch.cuda.__all__) - set(torch.neuron.__all__)
    )


@pytest.mark.parametrize("name", torch.neuron.__all__)
def test_every_name_is_there_and_says_what_it_is(name):
    thing = getattr(torch.neuron, name)
    if name != "default_generators":
        assert inspect.getdoc(thing)


def test_no_other_public_name_is_defined():
    own = {
        name
        for name, thing in vars(torch.neuron).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("softneuron")
    }
    assert own == set(torch.neuron.__all__) - {"default_generators"}


def test_torch_neuronx_offers_memory_streams_and_counters():
    import torch_neuronx

    for name in torch_neuronx.__all__:
        if name != "__version__" and hasattr(torch.neuron, name):
            assert getattr(torch_neuronx, name) is getattr(torch.neuron, name)


def test_the_module_is_the_devices():
    import torch.neuron as imported

    assert torch.get_device_module("neuron") is torch.neuron is imported
    assert torch.get_device_module(torch.device("neuron:1")) is torch.neuron
    assert torch.get_device_module() is torch.neuron
