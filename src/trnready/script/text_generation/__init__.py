"""The task text-generation: a causal language model goes on from a prompt."""

from __future__ import annotations

from pathlib import Path

from trnready.script.task import Prompt, Task

TASK = Task(
    name="text-generation",
    folder=Path(__file__).parent,
    output="logits",
    packages=("transformers", "accelerate"),
    prompts=(
        Prompt("The capital of France is"),
        Prompt("Once upon a time, in a small village by the sea,"),
        Prompt("What is the capital of France, and what is it known for?", chat=True),
    ),
    splits=True,
    graphs=2,  # one for the prompt, one for each token after it
    tables=("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",),
)
