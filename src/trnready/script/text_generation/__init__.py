"""The task text-generation: a causal language model goes on from a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from trnready.script.task import Prompt, Script, render_template


class TextGeneration:
    """The Hub's task `text-generation`."""

    name = "text-generation"
    packages = ("transformers", "accelerate")
    prompts = (
        Prompt("The capital of France is"),
        Prompt("Once upon a time, in a small village by the sea,"),
        Prompt("What is the capital of France, and what is it known for?", chat=True),
    )

    def classes(self) -> Mapping[str, str | tuple[str, ...]]:
        """Give the causal language models of Transformers, by model type."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        return cast(Mapping[str, str | tuple[str, ...]], MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

    def render(self, script: Script) -> str:
        """Give the source of `run.py`."""
        return render_template(Path(__file__).parent, script)


TASK = TextGeneration()
