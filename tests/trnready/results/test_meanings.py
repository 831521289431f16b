"""Every result, reason, warning, stage and column is explained, in the card and from one source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trnready.results import card, meanings
from trnready.results import row as rows
from trnready.results.diff import KINDS
from trnready.results.schema import SCHEMA


def test_everything_has_a_meaning_and_nothing_else_has() -> None:
    assert list(meanings.RESULTS) == list(rows.RESULTS)
    assert list(meanings.REASONS) == [r for reasons in rows.REASONS.values() for r in reasons]
    assert list(meanings.WARNINGS) == list(rows.WARNINGS)
    assert list(meanings.STAGES) == list(rows.STAGES)


def test_card_explains_every_reason_and_column() -> None:
    text = card.render(Counter())
    for reason, meaning in meanings.REASONS.items():
        assert f"| `{reason}` | {meaning} |" in text
    for column in SCHEMA:
        assert f"| `{column.name}` | " in text
        assert len(column.metadata[b"description"]) > 8


def test_front_matter_is_what_the_hub_reads() -> None:
    from huggingface_hub import DatasetCard

    line = card.Line("soft-0.1.0", "transformers", "5.24.0", "software", "text-generation", "PASS")
    odd = card.Line("a|b`<x>", "lib", "1", "hardware", "x: [y", "FAIL")
    text = card.render(Counter({line: 81, odd: 15}))
    data = DatasetCard(text).data.to_dict()
    assert data["configs"] == [{"config_name": "default", "data_files": "data/*.parquet"}]
    assert data["task_categories"] == ["text-generation"]
    assert data["size_categories"] == ["n<1K"]
    assert "| `soft-0.1.0` | `transformers` | `5.24.0` | `software` | 81 | 0 | 0 |" in text
    assert "| `a?b??x?` | `lib` | `1` | `hardware` | 0 | 15 | 0 |" in text


def test_the_docs_name_every_column_and_kind_of_change() -> None:
    text = (Path(__file__).parents[3] / "docs" / "results.md").read_text(encoding="utf-8")
    for column in SCHEMA:
        assert f"| `{column.name}` | " in text
    for kind in KINDS:
        assert f"| {kind.replace('_', ' ')} | " in text
