"""The task text2text-generation: an encoder-decoder, such as T5, rewrites a text."""

from __future__ import annotations

from pathlib import Path

from trnready.script.task import Prompt, Task

TASK = Task(
    name="text2text-generation",
    folder=Path(__file__).parent,
    output="logits",
    packages=("transformers", "accelerate"),
    prompts=(
        Prompt("translate English to German: The house is wonderful, and the garden is full of old trees."),
        Prompt(
            "summarize: The village lies by the sea. In winter storms come, and the boats stay in harbour."
        ),
    ),
    graphs=2,  # one for the first token, one for each after it; the encoder runs once
    tables=("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",),
)
