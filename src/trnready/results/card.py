"""The dataset card: the README.md that is written with the data and says what every column, result and reason
means. The dataset writes it at every compaction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa

from trnready.results import meanings
from trnready.results.files import write_whole
from trnready.results.row import REASONS
from trnready.results.schema import SCHEMA

NAME = "README.md"
MARK = "<!-- Written by `trnready results compact`; edits are lost at the next one. -->"


@dataclass(frozen=True, slots=True)
class Line:
    """The rows of one kind in the dataset, for counting."""

    neuronx_cc: str
    library: str
    library_version: str
    device_kind: str
    task: str
    result: str


LINE_COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(Line))


def write(results_dir: Path, counts: Counter[Line]) -> bool:
    """Write the card for the given counts and say whether it was written.

    A README.md that is not a card of ours is left alone. Raises `ResultsNotWritable`.
    """
    path = results_dir / NAME
    if path.exists() and MARK not in path.read_text("utf-8", "replace"):
        return False
    text = render(counts)
    if not path.exists() or path.read_text("utf-8", "replace") != text:
        write_whole(path, text.encode())
    return True


def render(counts: Counter[Line]) -> str:
    """Give the card's text: front matter for the Hub, how to query, counts, meanings, columns."""
    parts = [
        _front_matter(counts),
        MARK,
        "# Which models run on AWS Trainium",
        f"{meanings.TEST} {meanings.DEVICES}",
        "## How to query",
        '```python\nimport pandas as pd\n\ndf = pd.read_parquet("<this folder>/data")\n'
        'df[df.model_id == "Qwen/Qwen3-0.6B"]'
        '[["neuronx_cc", "library", "library_version", "neuron_cores", "result"]]\n```',
        "On the command line, `trnready results show`, `diff`, `export` and `verify` read this folder.",
        "`data/` holds one file for each pair of neuronx-cc version and library version, with the newest run "
        "of each model. The runs they replaced are in `history/`. `journal/` holds runs that are not folded "
        "in yet.",
        "## What is in it",
        _counts(counts),
        "## What each result means",
        _table(("result", "meaning"), meanings.RESULTS.items()),
        meanings.PASS_SAYS,
        "## What each reason means",
        _table(
            ("result", "reason", "meaning"),
            ((result, f"`{r}`", meanings.REASONS[r]) for result, reasons in REASONS.items() for r in reasons),
        ),
        "## How right is told from wrong",
        meanings.RULE,
        "## Warnings on a PASS",
        _table(("warning", "meaning"), ((f"`{w}`", text) for w, text in meanings.WARNINGS.items())),
        "## Stages",
        _table(("stage", "what was being done"), ((f"`{s}`", text) for s, text in meanings.STAGES.items())),
        "## Columns",
        "What is not known is null. A counter that was not measured is null, never 0.",
        _table(
            ("column", "type", "null", "meaning"),
            (
                (f"`{f.name}`", _type_name(f.type), "yes" if f.nullable else "no", _describe(f))
                for f in SCHEMA
            ),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _describe(field: pa.Field) -> str:
    text: str = field.metadata[b"description"].decode()
    return text


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type_name(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"struct ({', '.join(f'{f.name} {_type_name(f.type)}' for f in kind)})"
    if pa.types.is_timestamp(kind):
        return "timestamp, UTC"
    return {"double": "float"}.get(str(kind), str(kind))


def _table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    out = [_line(head), "|" + " --- |" * len(head)]
    out += [_line(line) for line in lines]
    return "\n".join(out)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _counts(counts: Counter[Line]) -> str:
    if not counts:
        return "Nothing yet."
    pairs: dict[tuple[str, ...], Counter[str]] = {}
    for line, count in counts.items():
        pair = (line.neuronx_cc, line.library, line.library_version, line.device_kind)
        pairs.setdefault(pair, Counter())[line.result] += count
    lines = (
        (*map(_code, pair), *(str(results[result]) for result in REASONS))
        for pair, results in sorted(pairs.items())
    )
    return _table(("neuronx-cc", "library", "version", "device", *REASONS), lines)


def _code(text: str) -> str:
    """Show a version as code; what a version never holds is replaced so that it cannot become markup."""
    return f"`{re.sub(r'[^0-9A-Za-z.+_-]', '?', text)}`"


def _size_category(count: int) -> str:
    for limit, name in ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K")):
        if count < limit:
            return name
    return "100K<n<1M"


def _front_matter(counts: Counter[Line]) -> str:
    """Give the YAML that the Hub reads: which files are the table, and what to list the dataset under."""
    tasks = sorted({line.task for line in counts if re.fullmatch(r"[a-z][a-z0-9-]*", line.task)})
    lines = ["---", "pretty_name: Which models run on AWS Trainium"]
    lines += ["license: apache-2.0", "language:", "- en"]
    if tasks:
        lines += ["task_categories:", *(f"- {task}" for task in tasks)]
    lines += ["tags:", "- trainium", "- neuron", "- torch-neuronx", "- model-support"]
    lines += ["size_categories:", f"- {_size_category(counts.total())}"]
    lines += ["configs:", "- config_name: default", '  data_files: "data/*.parquet"', "---"]
    return "\n".join(lines)
