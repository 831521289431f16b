"""What `trnready check` prints: stages and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnready.check import Done
from trnready.check_command import show
from trnready.console import output
from trnready.progress import watching


@pytest.mark.parametrize(
    ("cold", "warm", "told"),
    [
        (26.24, 0.04, "26.2 s; getting it from the NEFF cache 0.0 s"),
        (26.24, None, "26.2 s"),
        (None, 0.04, "none: all graphs were in the NEFF cache; getting them took 0.0 s"),
        (None, None, None),
    ],
)
def test_compiling_is_told_from_loading(make_row, capsys, cold, warm, told) -> None:
    show(Done(make_row(compile_s=cold, compile_warm_s=warm), None, None), Path("results"), output())
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if " " in line)
    assert lines.get("compiling") == told
    assert "compile" not in lines


def test_stages_say_what_they_span(capsys) -> None:
    with watching(output()) as watch:
        for stage in ("load", "compile", "run", "verify"):
            watch.stage(stage)
    assert [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "load",
        "compile (the first call, tracing included)",
        "run (the second call)",
        "verify",
        "done",
    ]
