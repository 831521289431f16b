"""One generation of a twin: the model made ready, the call of `generate`, what the device says of it.
`trnready.plan.twin_run` and the ranks of a split twin (`trnready.plan.twin_rank`) both call it."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, LogitsProcessor

from trnready.plan.blueprint import InvalidConfiguration, quiet
from trnready.script.task import NEW_TOKENS
from trnready.verdict.rule import GRAPHS_OF_A_GENERATION

MOST_GRAPHS = GRAPHS_OF_A_GENERATION + 1
"""So many graphs of one function are compiled before Dynamo is told to stop: one more than a fixed shape
needs decides already, and the others would take most of a sweep's time."""


class Failed(Exception):
    """A stage failed; carries the stage, and the cause as `__cause__`."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark what fails inside with the stage it failed in. Raises `Failed`."""
    try:
        with quiet():
            yield
    except Exception as error:
        raise Failed(name) from error


class Steps(LogitsProcessor):  # type: ignore[misc]
    """Notes which token each step chooses and when; with `fed`, feeds those tokens instead. `reference` is a
    model on the CPU that is to decode as one on the device does."""

    def __init__(self, fed: Sequence[int] | None = None, reference: Any = None) -> None:
        self.fed = fed
        self.reference = reference
        self.choices: list[int] = []
        self.times = [time.perf_counter()]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        if self.reference is not None and not self.choices:
            # Off the CPU, generate() decodes mixtures of experts with this kernel.
            experts = self.reference.get_experts_implementation()
            if "grouped_mm" in experts.values():
                one = {name: "batched_mm" if each == "grouped_mm" else each for name, each in experts.items()}
                self.reference.set_experts_implementation(one)
        self.choices.append(int(scores.argmax()))
        if self.fed is None:
            return scores
        fed = torch.full_like(scores, -torch.inf)
        fed[:, self.fed[len(self.choices) - 1]] = 0
        return fed


def prepared(model: Any) -> nn.Module:
    """Give the model with plain greedy decoding: of its own settings only its special tokens are kept.

    Raises `InvalidConfiguration` when it cannot generate.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    own = model.generation_config
    if own is None:
        raise InvalidConfiguration(f"{type(model).__name__} cannot generate")
    kept = {name: getattr(own, name) for name in names}
    if model.config.is_encoder_decoder and kept["decoder_start_token_id"] is None:
        kept["decoder_start_token_id"] = kept["bos_token_id"] or 0
    model.generation_config = GenerationConfig(**kept)
    result: nn.Module = model
    return result


def takes_ids_on_its_device(model: Any) -> bool:
    """Say whether a model consumes token ids elsewhere than in its forward pass, before which Transformers
    moves them: in an encoder, to place the parts of an image, or in a generate() of its own. As in run.py
    for images."""
    places = any(hasattr(each, "get_rope_index") for each in (model, getattr(model, "model", None)))
    return places or "generate" in vars(type(model)) or bool(model.config.is_encoder_decoder)


def generate(model: Any, prompt: Sequence[int], extra: dict[str, Any], steps: Steps) -> tuple[Any, list[int]]:
    """Give the logits of each step (float32, steps by vocabulary) and the tokens of one generation with a
    static cache."""
    ids = torch.tensor([list(prompt)], device=model.device if takes_ids_on_its_device(model) else "cpu")
    output = model.generate(
        **({"input_ids": ids, "attention_mask": torch.ones_like(ids)} | extra),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        cache_implementation="static",
        logits_processor=[steps],
        output_logits=True,
        return_dict_in_generate=True,
    )
    if not steps.choices:
        raise InvalidConfiguration(f"generate() of {type(model).__name__} drops its logits processor")
    logits = torch.cat(output.logits).float().cpu().numpy()
    return logits, output.sequences[0, -NEW_TOKENS:].tolist()


def on_device(
    load: Callable[[], nn.Module], prompt: Sequence[int], extra: dict[str, Any], cores: Sequence[int]
) -> tuple[dict[str, Any], Any]:
    """Load the model that `load` gives, generate twice, and give the facts of a report and the logits.
    `cores` are the cores of this process, whose peak memory counts. Raises `Failed`."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    counters = sys.modules["torch._dynamo.utils"].counters
    counters.clear()
    neuron = importlib.import_module("torch_neuronx")
    neuron.reset_dynamo_metrics()
    neuron.clear_op_tracking()
    device: Any = torch.get_device_module("neuron")
    for core in cores:
        device.reset_peak_memory_stats(core)
    start = time.perf_counter()
    with stage("load"):
        model: Any = load()
    held = _ask(lambda: [int(device.memory_allocated(core)) for core in cores])
    with stage("load"):
        # What a processor gives goes to the device with the model; token ids stay on the host.
        extra = {
            name: each.to("neuron") if isinstance(each, torch.Tensor) else each
            for name, each in extra.items()
        }
    loaded = time.perf_counter()
    first, steps = Steps(), Steps()
    with stage("compile"):
        generate(model, prompt, extra, first)
    compiled = time.perf_counter()
    graphs_first_call = _graphs(neuron)
    with stage("run"):
        logits, tokens = generate(model, prompt, extra, steps)
    facts = about(model, prompt, tokens, first.choices) | {
        "device": "neuron",
        "seconds": {
            "load": loaded - start,
            "first_call": compiled - loaded,
            "later_call": time.perf_counter() - compiled,
        },
        "step_seconds": [moment - steps.times[0] for moment in steps.times[1:]],
        "graphs_first_call": graphs_first_call,
        "graphs": _graphs(neuron),
        "graph_breaks": dict(counters["graph_break"]),
        "fallback_ops": _ask(lambda: list(neuron.get_fallback_ops())),
        "instance": _ask(lambda: str(device.get_device_properties(cores[0]).instance)),
        "peak_bytes": _ask(lambda: [int(device.max_memory_allocated(core)) for core in cores]),
        "held_bytes": held,
        "versions": versions(),
    }
    return facts, logits


def on_cpu(
    model: Any, prompt: Sequence[int], extra: dict[str, Any], tokens: Sequence[int]
) -> tuple[dict[str, Any], Any]:
    """Run on the CPU, fed the device's tokens; give the facts of a report and the logits."""
    experts = dict(model.get_experts_implementation())
    steps = Steps(tokens, model)
    try:
        logits, fed = generate(model, prompt, _cast(extra, model.dtype), steps)
    finally:
        model.set_experts_implementation(experts)
    unknown = ("graphs_first_call", "graphs", "graph_breaks", "fallback_ops", "instance", "peak_bytes")
    facts = about(model, prompt, fed, steps.choices) | {
        "device": "cpu",
        "seconds": {"load": 0.0, "first_call": 0.0},
        "step_seconds": [],
        "versions": {},
    }
    return facts | dict.fromkeys(unknown), logits


def about(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], first_call_tokens: Sequence[int]
) -> dict[str, Any]:
    """Give what a report says of the model and the text, wherever it ran. Bytes are those of this process."""
    local = [each.to_local() if hasattr(each, "to_local") else each for each in model.parameters()]
    return {
        "dtype": sorted({str(each.dtype).removeprefix("torch.") for each in local}),
        "cores": 1,
        "input_tokens": list(prompt),
        "tokens": list(tokens),
        "first_call_tokens": list(first_call_tokens),
        "end_tokens": model.generation_config.eos_token_id,
        "text": "",
        "parameter_devices": sorted({str(each.device) for each in local}),
        "parameter_bytes": sum(each.nbytes for each in local),
    }


def versions() -> dict[str, str]:
    """Give the versions that decide how a twin runs."""
    found = {name: metadata.version(name) for name in ("torch", "transformers")}
    neuron = _ask(lambda: str(importlib.import_module("torch_neuronx").__version__))
    return found | ({} if neuron is None else {"torch_neuronx": neuron})


def _cast(extra: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: each.to(dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for name, each in extra.items()
    }


def _graphs(neuron: Any) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] | None = _ask(lambda: [dict(each) for each in neuron.get_dynamo_metrics()])
    return found


def _ask(question: Callable[[], Any]) -> Any:
    """What the device answers, or None where it has no answer."""
    try:
        return question()
    except Exception:
        return None
