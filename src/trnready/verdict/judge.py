"""Whether a text is sound English (S11): what a sharded model wrote is judged so when the CPU cannot hold the
model. Three measures, all kept: perplexity under a small language model, repetition, and the language."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from trnready.errors import TrnreadyError
from trnready.hub.autoload import without_device
from trnready.hub.packaged import MODEL_ID, PackageMissing, smollm2
from trnready.results.row import Judge

LANGUAGE = "en"

MOST_PERPLEXITY = 580.0
"""Perplexity per token under SmolLM2-135M-Instruct up to which a text is sound."""

MOST_REPETITION = 0.4
"""Share of a text's runs of three words that were there before, up to which it is sound."""

FEWEST_WORDS = 6
"""A text of fewer words says too little."""

LEAST_ENGLISH = 0.02
"""Probability of English below which a text counts as another language."""

RUN = 3
WINDOW = 512
"""Tokens of a text that are judged; the rest says nothing new about a generation."""

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*|\d+|[^\w\s]")


class NoJudge(TrnreadyError):
    """The judge's model is not on this machine, so a text cannot be judged."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was measured on a text, and what it comes to: `because` says what is wrong, None when it is sound.

    `perplexity` is exp of the mean negative log likelihood of the text's tokens but the first, infinite for a
    text without a second; `repetition` lies between 0 and 1; `language` is an ISO 639-1 code, None for a text
    without letters; `english` is the probability that it is English.
    """

    model: str
    words: int
    perplexity: float
    repetition: float
    language: str | None
    english: float
    because: str | None

    @property
    def sound(self) -> bool:
        """Whether the text is sound English."""
        return self.because is None

    def to_row(self) -> Judge:
        """Give what a row of the dataset keeps."""
        return Judge(
            model=self.model,
            perplexity=self.perplexity,
            repetition=self.repetition,
            language=self.language,
        )


def judge_text(text: str, folder: Path | None = None) -> Judgement:
    """Judge a text by a model in `folder`, by default SmolLM2-135M-Instruct of this machine. Raises
    `NoJudge`."""
    words = _WORD.findall(text)
    language, english = _language(text)
    perplexity = _perplexity(text, str(folder or default_folder()))
    measured = Judgement(
        model=MODEL_ID if folder is None else folder.name,
        words=sum(word[0].isalnum() for word in words),
        perplexity=perplexity,
        repetition=repetition(words),
        language=language,
        english=english,
        because=None,
    )
    return replace(measured, because=fault_of(measured))


def fault_of(measured: Judgement) -> str | None:
    """Say what the measures show to be wrong, or None. Written so that a NaN is wrong."""
    if measured.words < FEWEST_WORDS:
        return f"it has {measured.words} words, and fewer than {FEWEST_WORDS} say nothing"
    if not measured.repetition <= MOST_REPETITION:
        return f"{measured.repetition:.0%} of it repeats what came before"
    if not measured.english >= LEAST_ENGLISH:
        return f"its language is {measured.language or 'unknown'}, not English"
    if not measured.perplexity <= MOST_PERPLEXITY:
        return f"its perplexity is {measured.perplexity:.0f}, above {MOST_PERPLEXITY:.0f}"
    return None


def repetition(words: Sequence[str]) -> float:
    """Give the share of the text's runs of three words that were there before; 0 for a text of one run or
    none."""
    runs = [tuple(word.casefold() for word in words[i : i + RUN]) for i in range(len(words) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def default_folder() -> Path:
    """Give the folder of SmolLM2-135M-Instruct. Raises `NoJudge`."""
    try:
        return smollm2(lambda _: None)
    except PackageMissing as error:
        raise NoJudge(
            f"a text can only be judged with {MODEL_ID}, which is not on this machine; "
            f"`trnready fetch smollm2` gets it ({error})"
        ) from error


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _language(text: str) -> tuple[str | None, float]:
    """Give the most likely language and the probability of English."""
    if not any(each.isalpha() for each in text):
        return None, 0.0
    ranked = _identifier().rank(text)
    return str(ranked[0][0]), next((float(odds) for name, odds in ranked if name == LANGUAGE), 0.0)


@cache
def loaded(folder: str) -> tuple[Any, Any]:
    """Give the tokenizer and the model in a folder, on the CPU in float32; loaded once in a process."""
    with without_device():
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        shows_bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        finally:
            if shows_bars:
                logging.enable_progress_bar()
        return tokenizer, model


def _perplexity(text: str, folder: str) -> float:
    tokenizer, model = loaded(folder)
    import torch

    ids = tokenizer(text, return_tensors="pt", return_token_type_ids=False)["input_ids"][:, :WINDOW]
    if ids.shape[1] < 2:
        return math.inf
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    return math.exp(min(loss, 700.0)) if math.isfinite(loss) else math.inf
