"""Whether a twin would notice a broken part: each attention, MLP, expert, router and mixer is set to zero in
turn, and the verdict must change. `trnready.plan.twin_run` measures it, on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trnready.verdict.compare import PerStep, difference, ratios, rms
from trnready.verdict.rule import FLOAT32_LIMIT, LIMIT

_KINDS = (
    ("router", re.compile(r"Router|TopK|MoEGate|MoeGate|GateLinear")),
    ("experts", re.compile(r"Experts$|ExpertsInterleaved$|ExpertMLPs?$")),
    (
        "mixer",
        re.compile(r"Mixer|ShortConv|DeltaNet|Recurrent|RwkvSelf|Mamba2?Layer$|LinearAttention|mLSTM|KDA"),
    ),
    ("attention", re.compile(r"Attention")),
    ("mlp", re.compile(r"MLP|FeedForward|Mlp|FFN|DenseActDense|DenseGatedActDense")),
)
_LOOSE = re.compile(r"(^|\.)(fc2|lin2|output\.dense|dense_4h_to_h)$")
_MOST_EXPERTS = 4


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`scores` holds, for each part that ran, how far the logits went when it was zero, in the units of a
    verdict's score; `blind` the parts whose loss would pass."""

    scores: dict[str, float]

    @property
    def blind(self) -> tuple[str, ...]:
        """Parts that could be lost without a change of verdict."""
        return tuple(name for name, score in self.scores.items() if not score > LIMIT)

    @property
    def least(self) -> float | None:
        """The smallest score."""
        return min(self.scores.values(), default=None)


def measure(
    same: nn.Module,
    wide: nn.Module | None,
    prompt: Sequence[int],
    tokens: Sequence[int],
    extra: dict[str, Any],
) -> Sensitivity:
    """Zero one part after another of `same`, the model in its own type; `wide` is the same in float32, None
    where `same` is: a fixed share of the logits is then the measure, as in a verdict. All tokens are fed at
    once; `extra` holds further inputs."""
    # Among the tokens that follow none may stand for an image: all are fed at once, and there is but one.
    stands_in = _placeholders(same.config)
    tokens = [prompt[0] if each in stands_in else each for each in tokens]
    ids = torch.tensor([[*prompt, *tokens[:-1]]])
    steps = len(tokens)
    ran: set[int] = set()
    hooks = [
        module.register_forward_hook(lambda module, *_: ran.add(id(module))) for module in same.modules()
    ]
    try:
        right = _logits(same, ids, steps, prompt, tokens, extra)
    finally:
        for hook in hooks:
            hook.remove()
    if wide is None:
        noise = rms(right) * (FLOAT32_LIMIT / LIMIT)
    else:
        noise = difference(right, _logits(wide, ids, steps, prompt, tokens, extra))
    scores = {}
    for name, parameters in _parts(same, ran):
        with _zeroed(parameters):
            wrong = _logits(same, ids, steps, prompt, tokens, extra)
        # A verdict takes the median of the steps, in float32 the worst of them.
        scores[name] = _score(wrong, right, noise, np.median if wide is not None else np.max)
    return Sensitivity(scores)


def _placeholders(config: Any) -> set[int]:
    """Give the token ids in whose places a model puts what it saw or heard."""
    kinds = ("image", "video", "audio")
    names = [f"{kind}_token_{what}" for kind in kinds for what in ("id", "index")]
    return {each for name in names if isinstance(each := getattr(config, name, None), int)}


def _score(wrong: Any, right: Any, noise: PerStep, over_steps: Callable[[PerStep], Any]) -> float:
    if not np.isfinite(wrong).all():
        return float("inf")
    return float(over_steps(ratios(difference(wrong, right), noise)))


def _logits(
    model: nn.Module,
    ids: torch.Tensor,
    steps: int,
    prompt: Sequence[int],
    tokens: Sequence[int],
    extra: dict[str, Any],
) -> Any:
    config: Any = model.config
    if config.is_encoder_decoder:
        start = model.generation_config.decoder_start_token_id  # type: ignore[union-attr]
        start = start if start is not None else (getattr(config, "bos_token_id", None) or 0)
        decoder = torch.tensor([[start, *tokens[:-1]]])
        inputs = {"input_ids": torch.tensor([list(prompt)]), "decoder_input_ids": decoder} | extra
    else:
        inputs = {"input_ids": ids} | {name: _longer(name, each, ids, prompt) for name, each in extra.items()}
    dtype = next(model.parameters()).dtype
    inputs = {
        name: each.to(dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for name, each in inputs.items()
    }
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits[0, -steps:].float().numpy()


def _longer(name: str, value: Any, ids: torch.Tensor, prompt: Sequence[int]) -> Any:
    """Marks of the prompt's tokens are 0 for those that follow; they see the images that the last one saw."""
    more = ids.shape[1] - len(prompt)
    if name == "image_attention_mask":
        return torch.cat([value, value[:, -1:].expand(-1, more, -1)], dim=1)
    if name.endswith(("token_type_ids", "position_mask")):
        return torch.nn.functional.pad(value, (0, more))
    return value


def _parts(model: nn.Module, ran: set[int]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Give every part that ran, outermost of its kind, with views of its parameters."""
    taken: list[str] = []
    for name, module in model.named_modules():
        kind = next((kind for kind, pattern in _KINDS if pattern.search(type(module).__name__)), None)
        if kind is None and _LOOSE.search(name):
            kind = "mlp"
        if kind is None or id(module) not in ran or not any(True for _ in module.parameters()):
            continue
        if any(name.startswith(f"{outer}.") for outer in taken):
            continue
        taken.append(name)
        parameters = [each.data for each in module.parameters()]
        if kind == "experts" and all(each.ndim >= 2 for each in parameters):
            count = min(each.shape[0] for each in parameters)
            for expert in range(min(count, _MOST_EXPERTS)):
                yield f"{name}[{expert}]", [each[expert] for each in parameters]
        else:
            yield name, parameters


@contextmanager
def _zeroed(parameters: list[torch.Tensor]) -> Iterator[None]:
    before = [each.clone() for each in parameters]
    for each in parameters:
        each.zero_()
    try:
        yield
    finally:
        for each, kept in zip(parameters, before, strict=True):
            each.copy_(kept)
