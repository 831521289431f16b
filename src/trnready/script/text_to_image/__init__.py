"""The task text-to-image: a pipeline of diffusers draws what a prompt says."""

from __future__ import annotations

from pathlib import Path

from trnready.script.task import Prompt, Task

TASK = Task(
    name="text-to-image",
    folder=Path(__file__).parent,
    output="latents",
    packages=("diffusers", "transformers", "accelerate"),
    prompts=(Prompt("A lighthouse on a cliff above a stormy sea, oil on canvas"),),
    graphs=1,  # the denoiser, with one shape for all steps
    layout="diffusers",
)
