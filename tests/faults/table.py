"""The fault table: what is injected, on which workload, what must come of it. `python -m faults` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from faults.checkpoints import SMOLLM2

MISMATCH = ("FAIL mismatch",)
WRONG = ("FAIL mismatch", "FAIL non_finite")
RIGHT = ("PASS match", "PASS match_within_noise")
RIGHT_INTERPRETED = tuple(f"{each} (not_compiled)" for each in RIGHT)
INTERPRETED, COMPILED = "-O0", "-O1"


@dataclass(frozen=True)
class Case:
    """One line of the table.

    `expected` holds the outcomes that are as expected; `level` is the compiler's. With `by_itself` the
    workload switches the fault on, in a process of its own or in mid-run, and not its starter.
    """

    fault: str
    workload: str
    arguments: tuple[str, ...]
    expected: tuple[str, ...]
    level: str = INTERPRETED
    by_itself: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    fires: bool = True

    @property
    def name(self) -> str:
        """The fault as it is switched on, without its argument."""
        return self.fault.partition(":")[0]

    @property
    def on(self) -> str:
        """The workload in a few words."""
        words = [self.workload.replace("_", " "), *self.arguments]
        if self.level == COMPILED:
            words.append("compiled")
        return " ".join(words)


_NUMBERS = (
    "nan_logits",
    "skip_layer:1",
    "wrong_kv_row",
    "attention_scale",
    "swap_heads",
    "low_precision_weights:6",
)
"""Faults of one core's numbers, which every decoder with a static cache feels."""


def cases() -> Iterator[Case]:
    """The table, in order."""
    yield from _one_core()
    yield from _experts()
    yield from _memory()
    yield from _work()
    yield from _process()
    yield from _ranks()


def _one_core() -> Iterator[Case]:
    for fault in _NUMBERS:
        for model, level in ((SMOLLM2, INTERPRETED), ("qwen3", INTERPRETED), ("qwen3", COMPILED)):
            expected = ("FAIL non_finite",) if fault == "nan_logits" else MISMATCH
            yield Case(fault, "generate", (model,), expected, level)
    for model in ("gpt_neox", "phi"):
        for fault in ("wrong_kv_row", "attention_scale", "low_precision_weights:6"):
            yield Case(fault, "generate", (model,), MISMATCH)
    yield Case("low_precision_weights:8", "generate", (SMOLLM2,), MISMATCH)
    yield Case("ignore_storage_offset", "generate", ("qwen3",), WRONG)
    yield Case("ignore_storage_offset", "generate", (SMOLLM2,), WRONG)
    yield Case("drop_masked_writes", "generate", ("qwen3_next",), WRONG)
    yield Case(
        "bf16_matmul", "float32_by_both_rules", ("qwen3",), ("FAIL mismatch; by the hardware rule PASS",)
    )
    yield Case(
        "bf16_matmul",
        "float32_by_both_rules",
        ("qwen3",),
        ("FAIL mismatch; by the hardware rule PASS",),
        COMPILED,
    )
    yield Case("alias_cross_attention", "seq2seq_twice", ("bart",), MISMATCH)


def _experts() -> Iterator[Case]:
    for fault in ("wrong_expert", "wrong_router"):
        yield Case(fault, "generate", ("qwen2_moe",), MISMATCH)
        yield Case(fault, "generate", ("qwen2_moe",), MISMATCH, COMPILED)


def _memory() -> Iterator[Case]:
    yield Case("untie_weights", "tied_weights", (), ("FAIL out of plan, losses differ",))
    yield Case("ignore_device_index", "two_cores", (), ("FAIL shard_error",))
    yield Case("poison_memory", "unset_buffer", (), WRONG)
    yield Case("poison_memory", "generate", ("qwen3",), RIGHT_INTERPRETED)
    # The next sizes are tried too; the newest row is that of the largest.
    yield Case("small_hbm", "command", ("qwen3",), ("FAIL out_of_memory on 4 cores",), by_itself=True)
    on_two = tuple(f"{outcome} on 2 cores" for outcome in RIGHT)
    yield Case("small_hbm:250", "command", ("qwen3",), on_two, by_itself=True)


def _work() -> Iterator[Case]:
    outcomes = tuple(f"{outcome} (not_compiled, fallback_ops)" for outcome in RIGHT)
    for level in ("operator", "graph"):
        yield Case(f"silent_cpu:{level}", "generate", ("qwen3",), outcomes)
    yield Case("silent_cpu:model", "generate", ("qwen3",), ("FAIL runs_on_cpu",))
    yield Case("recompile_each_step", "generate", ("qwen3",), ("FAIL recompiles",))
    yield Case("refuse_dynamic", "data_dependent", (), ("FAIL dynamic_shape",))
    yield Case("compile_error", "command", ("qwen3",), ("FAIL compile_error",), by_itself=True)
    yield Case("counters_off", "generate", ("qwen3",), ("FAIL error",))
    for fault in ("stale_neff", "damaged_neff"):
        expected = ("PASS rebuilt, then PASS with 1 hit",)
        yield Case(fault, "poisoned_cache", (fault,), expected, COMPILED, by_itself=True)
    yield Case("unseeded_random", "sampling", (), MISMATCH)


def _process() -> Iterator[Case]:
    yield Case("hang", "command", ("qwen3", "--timeout", "60"), ("FAIL timeout",), by_itself=True)
    yield Case("abort", "command", ("qwen3",), ("FAIL crash",), by_itself=True)
    yield Case("attention_scale", "command", (SMOLLM2,), MISMATCH, by_itself=True)
    yield Case("every_second_run", "command", ("qwen3",), ("FAIL non_finite flaky",), by_itself=True)


def _ranks() -> Iterator[Case]:
    for fault in ("wrong_expert", "wrong_router"):
        on_two = tuple(f"{outcome} on 2 cores" for outcome in MISMATCH)
        yield Case(fault, "command", ("qwen2_moe", "--cores", "2"), on_two, by_itself=True)
    yield Case("garbled_text", "sharded_text", ("3",), ("FAIL garbled_text",), by_itself=True)


def unbroken() -> Iterator[Case]:
    """The same workloads on the unbroken device: all of them must pass."""
    for model, level in ((SMOLLM2, INTERPRETED), ("qwen3", INTERPRETED), ("qwen3", COMPILED)):
        right = RIGHT if level == COMPILED else RIGHT_INTERPRETED
        yield Case("", "generate", (model,), right, level)
    for model in ("gpt_neox", "phi", "qwen3_next", "qwen2_moe"):
        yield Case("", "generate", (model,), RIGHT_INTERPRETED)
    yield Case("", "generate", ("qwen2_moe",), RIGHT, COMPILED)
    yield Case("", "float32_by_both_rules", ("qwen3",), ("PASS match; by the hardware rule PASS",))
    yield Case("", "seq2seq_twice", ("bart",), ("PASS match",))
    yield Case("", "tied_weights", (), ("PASS in plan, losses equal",))
    yield Case("", "two_cores", (), ("PASS match",))
    yield Case("", "data_dependent", (), ("PASS",))
    yield Case("", "sampling", (), ("PASS match",))
    on_two = tuple(f"{outcome} on 2 cores" for outcome in RIGHT)
    yield Case("", "command", ("qwen2_moe", "--cores", "2"), on_two, by_itself=True)
    yield Case("", "sharded_text", ("3",), ("PASS judged",), by_itself=True)
