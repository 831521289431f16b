"""Makes Inductor write less C++ and compile it in less time, the same kernels in it. Called by `build`."""

from __future__ import annotations

import contextlib
import gc
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unittest import mock

SETTINGS: dict[str, object] = {
    # The code that calls the kernels one after the other: optimising it takes longer than it gains.
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.enable_line_tables": False,
    # Dynamo's guards hold for every call, so nothing is left to check.
    "size_asserts": False,
}
"""Settings of Inductor under which a graph compiles faster. docs/compiler.md has what each saves."""


class _CompilesSideBySide:
    """Runs Inductor's compiler commands, the wrapper's beside the kernels' until the two are linked."""

    def __init__(self, run: Callable[[str, str], None], pool: ThreadPoolExecutor) -> None:
        self._run = run
        self._pool = pool
        self._wrapper: Future[None] | None = None

    def __call__(self, command: str, folder: str) -> None:
        words = shlex.split(command)
        target = words[words.index("-o") + 1]
        if target.endswith(".wrapper.o"):
            # Inductor removes `folder` when this returns, which is at once.
            self._wrapper = self._pool.submit(self._run, command, str(Path(target).parent))
            return
        if self._wrapper is not None and "-c" not in words:
            self._wrapper.result()
        self._run(command, folder)


@contextlib.contextmanager
def short_wrappers() -> Iterator[None]:
    """Let Inductor leave out the checks of every input's shape and strides, most of a wrapper's source.

    They are off at run time unless `AOTI_RUNTIME_CHECK_INPUTS` is set.
    """
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    def no_checks(self: CppWrapperCpu) -> None:
        self.prefix.splice_aot(
            """
            static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}
            """
        )

    with mock.patch.object(CppWrapperCpu, "generate_input_output_runtime_checks", no_checks):
        yield


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """Compile a graph's wrapper and its kernels at the same time, on two cores."""
    from torch._inductor import cpp_builder

    # Not `run_compile_cmd` itself, whose timer belongs to the thread that called it.
    run = cpp_builder._run_compile_cmd
    with (
        ThreadPoolExecutor(1, "softneuron-g++") as pool,
        mock.patch.object(cpp_builder, "_run_compile_cmd", _CompilesSideBySide(run, pool)),
    ):
        yield


@contextlib.contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Keep the garbage collector from going through all that was there before; it would again and again."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
