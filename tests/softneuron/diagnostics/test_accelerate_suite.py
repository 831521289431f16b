"""What `make accelerate-suite` reads from its reports and shows of them."""

from __future__ import annotations

from pathlib import Path

from softneuron.diagnostics.accelerate_suite import read_report, table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a.A" name="test_runs"/>
<testcase classname="tests.test_a.A" name="test_fails"><failure message="assert 1 | 2"/></testcase>
<testcase classname="tests.test_a.A" name="test_waits"><skipped message="needs two"/></testcase>
<testcase classname="tests.test_a.A" name="test_fails"/>
</testsuite></testsuites>"""


def test_a_report_gives_outcomes_and_a_failure_is_never_lost(tmp_path: Path):
    (tmp_path / "a.xml").write_text(REPORT)
    assert read_report(tmp_path / "a.xml") == {
        "tests.test_a.A::test_runs": ("passed", ""),
        "tests.test_a.A::test_fails": ("failed", "assert 1 | 2"),
        "tests.test_a.A::test_waits": ("skipped", "needs two"),
    }


def test_the_table_counts_and_lists_what_is_worse_on_neuron():
    cpu = {"t.A::one": ("passed", ""), "t.A::two": ("passed", ""), "t.A::three": ("failed", "no network")}
    neuron = {
        "t.A::one": ("passed", ""),
        "t.A::two": ("failed", "a | b"),
        "t.A::three": ("failed", "no network"),
    }
    lines = table({"cpu": {"test_a.py": cpu}, "neuron": {"test_a.py": neuron}}).splitlines()
    assert "| test_a.py | 2, 1, 0 | 1, 2, 0 |" in lines
    assert "| all | 2, 1, 0 | 1, 2, 0 |" in lines
    assert lines[-1] == "| test_a.py A::two | passed | failed | a \\| b |"
