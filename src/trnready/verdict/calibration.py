"""How often the judge errs: `python -m trnready.verdict.calibration` judges 100 sound English passages and
100 broken ones and prints a table. `--set tuning` does the same on the texts that the thresholds were set
on."""

from __future__ import annotations

import argparse
import importlib
import importlib.resources
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from trnready.verdict.judge import Judgement, default_folder, judge_text, loaded

SOUND = 100
BROKEN = 100
WORDS = 24
"""Words of a passage: about what 32 tokens hold."""
SEED = 5
RANDOM_TOKENS = 32
_PROSE = re.compile(r"[A-Za-z ,.;:'\u2019()\"-]+")
_MODULES = ("argparse", "asyncio", "collections", "decimal", "email", "statistics", "tarfile", "unittest")


@dataclass(frozen=True, slots=True)
class Text:
    """A passage and what it is: `sound`, or how it was broken."""

    kind: str
    text: str


def texts(which: str) -> list[Text]:
    """Give at most 100 sound and 100 broken texts. `which` is `calibration` or `tuning`; the two share no
    passage.

    The sound ones of `calibration` are half of our own writing and half from Python's language reference as
    `pydoc_data.topics` carries it; those of `tuning` are from the descriptions of installed packages and from
    the documentation of Python's own modules.
    """
    sources = {"calibration": _calibration_passages, "tuning": _tuning_passages}
    sound = [_first_words(passage) for passage in sources[which]()][:SOUND]
    foreign = _own()["other_languages"]
    half = len(foreign) // 2
    foreign = foreign[half:] if which == "tuning" else foreign[:half]
    generator = random.Random(f"{SEED} {which}")
    broken = [
        Text(kind, breaks(sound[index % len(sound)], generator, foreign))
        for index in range(BROKEN)
        for kind, breaks in [list(_KINDS.items())[index % len(_KINDS)]]
    ]
    return [Text("sound", passage) for passage in sound] + broken


def _own() -> dict[str, list[str]]:
    source = importlib.resources.files("trnready.verdict") / "calibration_texts.json"
    own: dict[str, list[str]] = json.loads(source.read_text(encoding="utf-8"))
    return own


def _calibration_passages() -> Iterator[str]:
    from pydoc_data import topics

    reference = list(_passages(topics.topics[name] for name in sorted(topics.topics)))
    own = _own()["english"]
    yield from own
    random.Random(SEED).shuffle(reference)
    yield from reference[: SOUND - len(own)]


def _tuning_passages() -> Iterator[str]:
    found = [str(each.metadata.json.get("description", "")) for each in metadata.distributions()]
    found += [importlib.import_module(name).__doc__ or "" for name in _MODULES]
    passages = sorted(_passages(found))
    random.Random(SEED).shuffle(passages)
    yield from passages


def _passages(documents: Iterable[str]) -> Iterator[str]:
    """Give the paragraphs of plain prose, each once."""
    seen = set()
    for document in documents:
        for paragraph in re.split(r"\n\s*\n", document):
            text = " ".join(paragraph.split())
            plain = _PROSE.fullmatch(text) and text[0].isupper() and text.endswith(".")
            if plain and len(text.split()) >= WORDS - 6 and text not in seen:
                seen.add(text)
                yield text


def _first_words(text: str) -> str:
    return " ".join(text.split()[:WORDS])


def _shuffled(text: str, generator: random.Random, foreign: list[str]) -> str:
    words = text.split()
    generator.shuffle(words)
    return " ".join(words)


def _random_tokens(text: str, generator: random.Random, foreign: list[str]) -> str:
    tokenizer = _tokenizer()
    tokens = [generator.randrange(100, len(tokenizer)) for _ in range(RANDOM_TOKENS)]
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


def _looping(text: str, generator: random.Random, foreign: list[str]) -> str:
    words = text.split()[: generator.randrange(1, 9)]
    return " ".join((words * WORDS)[:WORDS])


def _foreign(text: str, generator: random.Random, foreign: list[str]) -> str:
    return generator.choice(foreign)


def _cut_off(text: str, generator: random.Random, foreign: list[str]) -> str:
    """The text ends after a few words, as when the end token comes too early."""
    return " ".join(text.split()[: generator.randrange(0, 5)])


def _nan_argmax(text: str, generator: random.Random, foreign: list[str]) -> str:
    """The argmax of NaN is one token for ever; which text it stands for depends on the vocabulary."""
    tokenizer = _tokenizer()
    token = generator.choice([0, 1, 17, 28, 198, 216, generator.randrange(300, 3000)])
    return str(tokenizer.decode([token] * RANDOM_TOKENS, skip_special_tokens=True))


def _half_sound(text: str, generator: random.Random, foreign: list[str]) -> str:
    words = text.split()
    return " ".join(words[: len(words) // 2]) + " " + _random_tokens(text, generator, foreign)


def _wrong_letters(text: str, generator: random.Random, foreign: list[str]) -> str:
    """Every word's letters are in another order."""
    return " ".join("".join(generator.sample(word, len(word))) for word in text.split())


_KINDS: dict[str, Callable[[str, random.Random, list[str]], str]] = {
    "shuffled words": _shuffled,
    "random tokens": _random_tokens,
    "a loop": _looping,
    "another language": _foreign,
    "cut off": _cut_off,
    "argmax of NaN": _nan_argmax,
    "half random": _half_sound,
    "shuffled letters": _wrong_letters,
}


def _tokenizer() -> Any:
    return loaded(str(default_folder()))[0]


def main() -> None:
    """Judge the texts and print how often the judge was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("calibration", "tuning"), default="calibration")
    parser.add_argument("--show", action="store_true", help="print every text that was judged wrongly")
    args = parser.parse_args()
    judged = [(text, judge_text(text.text)) for text in texts(args.set)]
    counts = Counter(text.kind for text, _ in judged)
    wrong = Counter(text.kind for text, judgement in judged if _is_wrong(text, judgement))
    print("| texts | number | judged wrongly | perplexity: least, median, most |")
    print("| --- | --- | --- | --- |")
    for kind, count in counts.items():
        found = sorted(judgement.perplexity for text, judgement in judged if text.kind == kind)
        numbers = ", ".join(f"{each:.4g}" for each in (found[0], found[len(found) // 2], found[-1]))
        print(f"| {kind} | {count} | {wrong[kind]} | {numbers} |")
    broken = sum(count for kind, count in wrong.items() if kind != "sound")
    print(f"\n{wrong['sound']} of {counts['sound']} sound texts refused, ", end="")
    print(f"{broken} of {counts.total() - counts['sound']} broken texts let through.")
    if args.show:
        for text, judgement in judged:
            if _is_wrong(text, judgement):
                print(f"{text.kind}: {judgement}\n  {text.text!r}")


def _is_wrong(text: Text, judgement: Judgement) -> bool:
    return judgement.sound != (text.kind == "sound")


if __name__ == "__main__":
    main()
