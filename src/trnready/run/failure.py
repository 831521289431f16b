"""Why a run ended badly: a table of finders, one line each, from the log and the exception to a reason, and a
fingerprint that groups equal failures (B6). `trnready.check` asks it about every run that left no report."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trnready.run.process import Ending, Exited, Finished, Killed, TimedOut, TooLarge

TAIL_LINES = 40
TAIL_CHARACTERS = 8_000
ERROR_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed run comes to, by the names of the dataset."""

    result: str
    reason: str
    error: str
    hint: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Finder:
    """One line of the table: the first pattern that the exception's text has gives the reason."""

    pattern: re.Pattern[str]
    result: str
    reason: str
    hint: str | None


def _finder(pattern: str, reason: str, hint: str | None, result: str = "FAIL") -> Finder:
    return Finder(re.compile(pattern, re.IGNORECASE | re.DOTALL), result, reason, hint)


_MORE_CORES = "Shard the model over more cores, or choose a smaller dtype."
_MORE_MEMORY = "The host ran out of memory, not the device; use a machine with more."
_STATIC = "Neuron compiles fixed shapes alone; the model asks for one that depends on its data."
_OPERATOR = "An operator has no kernel on the device; the log names it."
_DTYPE = "Try another --dtype."
_REMOTE = "The checkpoint brings its own Python code, which is not run."
_QUANTIZED = (
    "unsupported_quantization",
    "The checkpoint is quantized in a way that needs a package or device which is not here.",
)
_PROCESSOR = (
    "processor_unavailable",
    "Its tokenizer or processor needs a package that is not here, or its files are missing.",
)
_COMPILER = "The log holds the compiler's own words."

# Read from top to bottom: what is told more precisely comes first.
FINDERS: tuple[Finder, ...] = (
    _finder(r"\bOutOfMemoryError\b", "out_of_memory", _MORE_CORES),
    _finder(r"^MemoryError\b|can't allocate memory", "host_out_of_memory", _MORE_MEMORY),
    _finder(r"Cannot allocate memory", "host_out_of_memory", _MORE_MEMORY),
    _finder(r"trust_remote_code", "remote_code", _REMOTE, "SKIPPED"),
    _finder(r"(gptq|awq|bitsandbytes|compressed.tensors).*(install|require)", *_QUANTIZED, "SKIPPED"),
    _finder(r"quantiz.*(not available|not supported|install|require)", *_QUANTIZED, "SKIPPED"),
    _finder(r"does not recognize this architecture", "unsupported_architecture", None, "SKIPPED"),
    _finder(r"Could not load any \w+ processor class", *_PROCESSOR, "SKIPPED"),
    _finder(r"\w*(Processor|FeatureExtractor|Tokenizer)\w* requires the .* librar", *_PROCESSOR, "SKIPPED"),
    _finder(r"Unrecognized (\w+ processor|feature extractor|processing class)", *_PROCESSOR, "SKIPPED"),
    _finder(r"Can't load (\w+ processor|feature extractor|processor|tokenizer)\b", *_PROCESSOR, "SKIPPED"),
    _finder(r"instantiate the backend tokenizer", *_PROCESSOR, "SKIPPED"),
    _finder(r"GuardOnDataDependent|data.dependent|DynamicOutputShape", "dynamic_shape", _STATIC),
    _finder(r"dynamic shapes?\b|dynamic=True", "dynamic_shape", _STATIC),
    _finder(r"not implemented for '[\w]+'", "unsupported_dtype", _DTYPE),
    _finder(r"unsupported (scalar ?type|dtype|data type)", "unsupported_dtype", _DTYPE),
    _finder(r"dtype .*not supported|must have the same dtype", "unsupported_dtype", _DTYPE),
    _finder(r"Could not run '[\w:.]+'", "unsupported_operator", _OPERATOR),
    _finder(r"NotImplementedError.*(aten::|operator)", "unsupported_operator", _OPERATOR),
    _finder(r"not (currently )?implemented for the neuron", "unsupported_operator", _OPERATOR),
    _finder(r"BackendCompilerFailed|InductorError|CppCompileError", "compile_error", _COMPILER),
    _finder(r"torch\._dynamo|torch\._inductor|neuronx-cc", "compile_error", _COMPILER),
)

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?::.*)?")
_RANK = re.compile(r"\[rank(\d+)\]:(?: (.*)|)$")
_ECHOES = ("ChildFailedError", "SignalException", "DistBackendError")
"""Exceptions by which a launcher or another rank says no more than that one of the ranks failed."""
_LOST_RANK = re.compile(r"Signal \d+ \((SIG[A-Z]+)\) received by PID")
_BAR = re.compile(r"^.*?\d+%\|.{0,200}?\| \S+/\S+ \[[^\]]*\]")
"""A progress bar of tqdm, as it stands at the beginning of a line."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def explain(ending: Ending, log: str) -> Failure:
    """Say why a run failed, from how it ended and what it printed."""
    exception = last_exception(log)
    lost = _LOST_RANK.search(log)
    match ending:
        case TimedOut(limit_s):
            error = f"Still running after {limit_s:g} s."
            return _failure("FAIL", "timeout", error, "Give it more time with --timeout.")
        case TooLarge(limit_bytes):
            error = f"Held more than {limit_bytes / 2**30:.3g} GiB of the host's memory."
            return _failure("FAIL", "host_out_of_memory", error, "Give it more with --memory.")
        case Killed(by_kernel=True):
            error = "The kernel killed the run because the host had no memory left."
            return _failure("FAIL", "host_out_of_memory", error, _MORE_MEMORY)
        case Killed(signal.SIGKILL):
            error = "Killed from outside by SIGKILL."
            return _failure("FAIL", "crash", error, "Someone or something killed it, perhaps for its memory.")
        case Killed(number):
            error = f"Ended by {ending.name}." + (f" Last words: {exception}" if exception else "")
            hint = "A crash below Python: the log holds what it said." if number in _CRASHES else None
            return _failure("FAIL", "crash", error, hint)
        case Exited() if lost is not None and (exception is None or is_echo(exception)):
            return _failure("FAIL", "crash", f"A rank was ended by {lost[1]}.", None)
        case Exited(status) if exception is None:
            return _failure("FAIL", "error", f"run.py ended with exit status {status}.", None)
        case Finished() if exception is None:
            return _failure("FAIL", "error", "run.py ended well but left no report.", None)
    found = next((each for each in FINDERS if each.pattern.search(exception or "")), None)
    if found is None:
        return _failure("FAIL", "error", exception or "", None)
    return _failure(found.result, found.reason, exception or "", found.hint)


def last_exception(log: str) -> str | None:
    """Give the exception that ends the last traceback in the log, with its message; None without one. Of
    several ranks, that of the first which did not fail for another's sake."""
    streams: dict[str, list[str]] = {}
    for line in clean(log).splitlines():
        # PyTorch marks what a rank raises, so that the lines of several can be told apart.
        marked = _RANK.match(line)
        rank, text = (marked[1], marked[2] or "") if marked else ("", line)
        streams.setdefault(rank, []).append(text)
    ranks = [_last_exception(lines) for rank, lines in streams.items() if rank]
    found = [*(each for each in ranks if each), *_exceptions(streams.get("", []))]
    return next((each for each in found if not is_echo(each)), found[0] if found else None)


def is_echo(exception: str) -> bool:
    """Say whether an exception says no more than that another process failed."""
    return exception.partition(":")[0].rpartition(".")[2] in _ECHOES


def _last_exception(lines: Sequence[str]) -> str | None:
    return next(_exceptions(lines), None)


def _exceptions(lines: Sequence[str]) -> Iterator[str]:
    """Give the exceptions that end a traceback, the last first."""
    starts = [index for index, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    for start in reversed(starts):
        rest = lines[start + 1 :]
        plain = [_BAR.sub("", line) for line in rest]
        bars = [cut != line for cut, line in zip(plain, rest, strict=True)]
        end = _end_of_traceback(plain, bars)
        if end is not None:
            told = (line for line, bar in zip(plain[end:], bars[end:], strict=True) if line or not bar)
            yield "\n".join(told).strip()[:ERROR_CHARACTERS]


def _end_of_traceback(lines: Sequence[str], bars: Sequence[bool]) -> int | None:
    """Give where the exception is named: the first line of a traceback that is not indented. A progress bar
    that was drawn in between may have torn lines apart."""
    for index, line in enumerate(lines):
        if _EXCEPTION.fullmatch(line):
            return index
        if line.strip() and not line.startswith(" ") and not any(bars[: index + 1]):
            return None
    return None


def tail(log: str) -> str:
    """Give the last lines of a log, as a person would have seen them."""
    return "\n".join(clean(log).splitlines()[-TAIL_LINES:])[-TAIL_CHARACTERS:]


def clean(log: str) -> str:
    """Give the log without colours and without what progress bars wrote over."""
    lines = (_ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2] for line in log.split("\n"))
    return "\n".join(_CONTROL.sub("", line) for line in lines)


def fingerprint(reason: str, error: str) -> str:
    """Give a short name that equal failures share: numbers, addresses and paths are left out."""
    text = error.splitlines()[0] if error else ""
    text = re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?", "#", text)
    text = re.sub(r"(/[\w.@+-]+)+/?", "<path>", text)
    return hashlib.sha256(f"{reason}\n{text}".encode()).hexdigest()[:12]


def _failure(result: str, reason: str, error: str, hint: str | None) -> Failure:
    return Failure(result, reason, error, hint, fingerprint(reason, error))
