"""The task automatic-speech-recognition: a model such as Whisper writes down what it hears. The sound is made
by the script: a prompt is a row of notes, in hertz."""

from __future__ import annotations

from pathlib import Path

from trnready.script.task import Prompt, Task

TASK = Task(
    name="automatic-speech-recognition",
    folder=Path(__file__).parent,
    output="logits",
    packages=("transformers", "accelerate"),
    prompts=(Prompt("262 330 392 523"), Prompt("880 220 660 110 440")),
    graphs=2,  # one for the first token, one for each after it; the encoder runs once
    tables=("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",),
)
