"""The task sentence-similarity: a model of sentence-transformers embeds sentences, and those that mean the
same come to lie near each other."""

from __future__ import annotations

from pathlib import Path

from trnready.script.task import Prompt, Task

TASK = Task(
    name="sentence-similarity",
    folder=Path(__file__).parent,
    output="embeddings",
    packages=("sentence-transformers", "transformers"),
    prompts=(Prompt("The capital of France is Paris."),),
    graphs=1,  # all sentences are padded to one length
    tables=("MODEL_MAPPING_NAMES",),
    layout="sentence-transformers",
)
