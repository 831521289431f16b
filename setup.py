"""Builds the C++ extension of softneuron and brings catalogs and twins into the package; everything else is
in pyproject.toml."""

import os
from pathlib import Path

# PyTorch would load the core of an earlier build, which this one replaces.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import setup
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import BuildExtension, CppExtension

CSRC = Path("src/softneuron/csrc")
KINETO = (
    Path(torch.__file__).parent / "include" / "kineto"
)  # PyTorch's header for profilers of devices wants it
SHIPPED = ("catalog/*.parquet", "catalog/selected.yaml", "datasets/*.jsonl")


class BuildWithData(build_py):
    """Copies the repository's catalogs and twins to `trnready/shipped`, where `trnready.carried` looks for
    them; an editable install reads them in the checkout."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        for file in sorted(each for pattern in SHIPPED for each in Path().glob(pattern)):
            to = Path(self.build_lib) / "trnready" / "shipped" / file
            self.mkpath(str(to.parent))
            self.copy_file(str(file), str(to))


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
    cmdclass={"build_ext": BuildExtension, "build_py": BuildWithData},
)
