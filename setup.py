"""Builds the C++ extension of softneuron; everything else is in pyproject.toml."""

import os
from pathlib import Path

# PyTorch would load the core of an earlier build, which this one replaces.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

CSRC = Path("src/softneuron/csrc")
KINETO = (
    Path(torch.__file__).parent / "include" / "kineto"
)  # PyTorch's header for profilers of devices wants it

setup(
    ext_modules=[
        CppExtension(
            name="softneuron._C",
            sources=sorted(str(path) for path in CSRC.glob("*.cpp")),
            depends=sorted(str(path) for path in CSRC.glob("*.h")),
            include_dirs=[str(CSRC.resolve()), str(KINETO)],
            extra_compile_args=["-O2", "-g0", "-std=c++20", "-Wall", "-Wno-unused-function"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
