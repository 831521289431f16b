"""From how a run ended and what it printed to a reason of the dataset."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.results.row import REASONS
from trnready.run.failure import FINDERS, clean, explain, fingerprint, last_exception, tail
from trnready.run.process import Exited, Finished, Killed, TimedOut


def _log(exception: str) -> str:
    return (
        "run.py: load\nTraceback (most recent call last):\n"
        f'  File "/tmp/run.py", line 3, in <module>\n    main()\n    ^^^^^^\n{exception}\n'
    )


EXCEPTIONS = [
    ("torch.OutOfMemoryError: neuron:0 has 24.00 GiB", "FAIL", "out_of_memory"),
    ("MemoryError", "FAIL", "host_out_of_memory"),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory.",
        "FAIL",
        "host_out_of_memory",
    ),
    ("RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Float8_e4m3fn'", "FAIL", "unsupported_dtype"),
    (
        "NotImplementedError: Could not run 'aten::_foo' with arguments from the 'neuron' backend.",
        "FAIL",
        "unsupported_operator",
    ),
    (
        "torch._dynamo.exc.UserError: Could not guard on data-dependent expression u0",
        "FAIL",
        "dynamic_shape",
    ),
    (
        "torch._dynamo.exc.BackendCompilerFailed: backend='neuron' raised:\nRuntimeError: no",
        "FAIL",
        "compile_error",
    ),
    (
        "torch._dynamo.exc.BackendCompilerFailed: backend='neuron' raised:\nOutOfMemoryError: core 0",
        "FAIL",
        "out_of_memory",
    ),
    ("torch._dynamo.exc.Unsupported: call_method", "FAIL", "compile_error"),
    ("ValueError: Please pass the argument `trust_remote_code=True`", "SKIPPED", "remote_code"),
    ("ImportError: Loading a GPTQ model requires optimum", "SKIPPED", "unsupported_quantization"),
    (
        "ImportError: \nLayoutLMv2ImageProcessor requires the PIL library but it was not found.",
        "SKIPPED",
        "processor_unavailable",
    ),
    ("OSError: Can't load feature extractor for 'x'. Make sure …", "SKIPPED", "processor_unavailable"),
    ("KeyError: 'weight'", "FAIL", "error"),
]


@pytest.mark.parametrize(("exception", "result", "reason"), EXCEPTIONS)
def test_the_exception_tells_the_reason(exception, result, reason):
    failure = explain(Exited(1), _log(exception))
    assert (failure.result, failure.reason, failure.error) == (result, reason, exception)


def test_every_finder_gives_a_reason_of_the_dataset():
    assert all(finder.reason in REASONS[finder.result] for finder in FINDERS)


@pytest.mark.parametrize(
    ("ending", "reason", "error"),
    [
        (TimedOut(90), "timeout", "Still running after 90 s."),
        (
            Killed(signal.SIGKILL, by_kernel=True),
            "host_out_of_memory",
            "The kernel killed the run because the host had no memory left.",
        ),
        (Killed(signal.SIGKILL, by_kernel=False), "crash", "Killed from outside by SIGKILL."),
        (Killed(signal.SIGSEGV, by_kernel=False), "crash", "Ended by SIGSEGV."),
        (Killed(200, by_kernel=False), "crash", "Ended by signal 200."),
        (Exited(3), "error", "run.py ended with exit status 3."),
        (Finished(), "error", "run.py ended well but left no report."),
    ],
)
def test_an_end_without_an_exception(ending, reason, error):
    failure = explain(ending, "run.py: load\n")
    assert (failure.result, failure.reason, failure.error) == ("FAIL", reason, error)


def test_a_time_limit_counts_for_more_than_what_was_printed_before():
    assert explain(TimedOut(1), _log("torch.OutOfMemoryError: full")).reason == "timeout"


def test_the_last_of_several_exceptions_counts():
    log = _log("KeyError: 'a'") + "\nDuring handling of the above exception:\n\n" + _log("ValueError: b")
    assert last_exception(log) == "ValueError: b"


RANKS = """run.py: load
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank0]:   File "/tmp/run.py", line 3, in <module>
[rank1]:   File "/tmp/run.py", line 3, in <module>
[rank1]:     main()
[rank0]:     main()
[rank0]: torch.distributed.DistBackendError: neuron:all_reduce failed on rank 0: rank 1 has ended.
[rank1]: torch.OutOfMemoryError: neuron:1 is full
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_of_several_ranks_the_one_that_failed_first_is_named():
    assert last_exception(RANKS) == "torch.OutOfMemoryError: neuron:1 is full"
    assert explain(Exited(1), RANKS).reason == "out_of_memory"


def test_a_rank_that_was_killed_is_a_crash():
    log = RANKS.replace("[rank1]: torch.OutOfMemoryError: neuron:1 is full\n", "")
    log += "  traceback : Signal 11 (SIGSEGV) received by PID 4711\n"
    failure = explain(Exited(1), log)
    assert (failure.reason, failure.error) == ("crash", "A rank was ended by SIGSEGV.")


def test_a_models_own_words_are_no_exception():
    assert last_exception("run.py: run\n  The error was\nMemoryError: she said\n") is None
    assert explain(Exited(1), "OutOfMemoryError: a poem\n").reason == "error"


def test_equal_failures_share_a_fingerprint_and_others_do_not():
    one = fingerprint("out_of_memory", "OutOfMemoryError: core 0 at 0x7f12 in /a/b/c.py, 12.5 GiB")
    assert one == fingerprint("out_of_memory", "OutOfMemoryError: core 3 at 0xdead in /x/y.py, 1 GiB")
    assert one != fingerprint("error", "OutOfMemoryError: core 0 at 0x7f12 in /a/b/c.py, 12.5 GiB")
    assert one != fingerprint("out_of_memory", "OutOfMemoryError: segment 0")


def test_the_tail_shows_what_a_person_would_have_seen():
    log = "\x1b[31mred\x1b[0m\nLoading:   0%\rLoading: 100%\r\nbell\x07\n"
    assert clean(log) == "red\nLoading: 100%\nbell\n"
    assert len(tail("line\n" * 500).splitlines()) == 40


@given(st.text())
def test_any_log_is_explained(log):
    failure = explain(Exited(1), log)
    assert failure.reason in REASONS[failure.result]
    assert len(tail(log)) <= 8000


BAR = "\rLoading weights:  17%|█▋        | 4/24 [00:00<00:00, 51.48it/s]"
TORN = _log("torch.OutOfMemoryError: neuron:0 has 24.00 GiB")


@given(
    st.integers(TORN.index("last):") + len("last):\n"), TORN.index("torch.Out")),
    st.sampled_from([BAR, f"{BAR}\n", f"{BAR}\n\n", f"{BAR}{BAR}"]),
)
def test_a_progress_bar_that_tears_a_traceback_apart_hides_no_exception(place, bar):
    # tqdm draws a bar once more when Python lets go of it, which may be while the traceback is printed.
    assert last_exception(TORN[:place] + bar + TORN[place:]) == last_exception(TORN)


def test_a_progress_bar_is_no_part_of_the_message():
    assert last_exception(f"{TORN}{BAR}\n") == "torch.OutOfMemoryError: neuron:0 has 24.00 GiB"
