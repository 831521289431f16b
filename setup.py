"""Builds the C++ extension of softneuron; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

CSRC = Path("src/softneuron/csrc")

setup(
    ext_modules=[
        CppExtension(
            name="softneuron._C",
            sources=sorted(str(path) for path in CSRC.glob("*.cpp")),
            depends=sorted(str(path) for path in CSRC.glob("*.h")),
            include_dirs=[str(CSRC.resolve())],
            extra_compile_args=["-O2", "-g0", "-std=c++20", "-Wall", "-Wno-unused-function"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
