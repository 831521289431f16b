"""The options of `torch.compile(backend="neuron")`, and that the docs have each."""

from __future__ import annotations

from pathlib import Path

import pytest

from softneuron.compiler.options import _KNOWN, CompileOptionError, Options, read_options

DOCS = Path(__file__).parents[3] / "docs" / "compiler.md"


def test_every_option_is_documented() -> None:
    page = DOCS.read_text()
    assert [name for name in _KNOWN if f'`options["{name}"]`' not in page] == []


def test_options_for_another_compiler_are_taken_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEURON_COMPILER_OPT_LEVEL", "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"):
        monkeypatch.delenv(name, raising=False)
    assert read_options(None, {"use_tensorizer_backend": True, "dynamic": True}) == Options()


def test_an_option_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(CompileOptionError, match="has no option 'speed': it reads model_name, fallback_exec"):
        read_options(None, {"speed": 9})
