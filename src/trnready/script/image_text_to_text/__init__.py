"""The task image-text-to-text: a vision-language model answers a question about an image that the script
draws itself."""

from __future__ import annotations

from pathlib import Path

from trnready.script.task import Prompt, Task

TASK = Task(
    name="image-text-to-text",
    folder=Path(__file__).parent,
    output="logits",
    packages=("transformers", "accelerate", "pillow"),
    prompts=(
        Prompt("What is in this image? Describe the shapes and their colours."),
        Prompt("Tell a short story about what you see."),
    ),
    splits=True,
    graphs=2,  # one for image and prompt, one for each token after them
    tables=("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",),
)
