"""The device appears after a plain `import torch`, and stands aside where it must."""

from __future__ import annotations

from pathlib import Path

from softneuron import COMPILER_VERSION


def test_after_import_torch_the_device_is_there(run_python):
    assert (
        run_python("import torch; print(torch.neuron.is_available(), torch.neuron.device_count())")
        == "True 4"
    )


def test_it_is_the_accelerator_of_the_process(run_python):
    program = (
        "import torch;"
        "print(torch.accelerator.current_accelerator(), torch.get_device_module('neuron').__name__)"
    )
    assert run_python(program) == "neuron softneuron.runtime.module"


def test_torch_neuronx_can_be_imported_and_says_that_it_is_software(run_python):
    program = "import torch_neuronx; print(torch_neuronx.__version__)"
    assert run_python("import torch; " + program) == COMPILER_VERSION
    assert COMPILER_VERSION.startswith("soft-")


def test_with_a_fault_its_version_says_so(run_python):
    program = "import torch, torch_neuronx; print(torch_neuronx.__version__)"
    said = run_python(program, SOFTNEURON_FAULTS="nan_logits")
    assert said == f"{COMPILER_VERSION}+faults"


def test_transformers_and_accelerate_find_it(run_python):
    program = (
        "from transformers.utils.import_utils import is_torch_neuron_available;"
        "from accelerate.utils import is_neuron_available;"
        "print(is_torch_neuron_available(check_device=True), is_neuron_available(check_device=True))"
    )
    assert run_python(program) == "True True"


def test_softneuron_0_switches_it_off(run_python):
    assert run_python("import torch; print(hasattr(torch, 'neuron'))", SOFTNEURON="0") == "False"


def test_the_standard_switch_of_autoload_works(run_python):
    program = "import torch; print(hasattr(torch, 'neuron'))"
    assert run_python(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False"


def test_a_real_torch_neuronx_goes_first(run_python, tmp_path: Path):
    (tmp_path / "torch_neuronx.py").write_text("__version__ = '2.13.3.0'\n")
    program = "import torch, torch_neuronx; print(hasattr(torch, 'neuron'), torch_neuronx.__version__)"
    assert run_python(program, PYTHONPATH=str(tmp_path)) == "False 2.13.3.0"


def test_a_core_that_does_not_load_is_a_warning_and_torch_still_imports(run_python, tmp_path: Path):
    broken = tmp_path / "softneuron"
    broken.mkdir()
    for name in ("__init__.py", "registration.py"):
        source = Path(__import__("softneuron").__file__).with_name(name)
        (broken / name).write_text(source.read_text())
    program = (
        "import warnings; warnings.simplefilter('always');\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    import torch\n"
        "print(hasattr(torch, 'neuron'), [str(w.message)[:36] for w in seen])"
    )
    assert run_python(program, PYTHONPATH=str(tmp_path)) == ("False ['softneuron: the device neuron is not']")


STANDING = """
import contextlib, io, os, torch
from softneuron import _autoload
from softneuron.registration import standing_aside
print(standing_aside())
torch.backends.cuda.is_built = torch.cuda.is_available = lambda: True
print(standing_aside())
for value in ("0", "1"):
    os.environ["SOFTNEURON"] = value
    print(standing_aside())
os.environ["SOFTNEURON"] = ""
_autoload()
print(hasattr(torch, "neuron"), torch._C._get_privateuse1_backend_name())
torch.utils.rename_privateuse1_backend("another")
os.environ["SOFTNEURON"] = "1"
print(standing_aside())
"""


def test_it_stands_aside_for_cuda_unless_asked_for_and_for_another_backend(run_python):
    assert run_python(STANDING, TORCH_DEVICE_BACKEND_AUTOLOAD="0", SOFTNEURON="").splitlines() == [
        "None",
        "CUDA is present and SOFTNEURON is not 1",
        "SOFTNEURON=0",
        "None",
        "False privateuseone",
        "another out-of-tree backend is registered",
    ]


def test_python_started_in_the_source_folder_imports_torch(run_python):
    source = Path(__import__("softneuron").__file__).parent
    program = (
        f"import os, sys; os.chdir({str(source)!r}); sys.path.insert(0, '');"
        "import torch; print(torch.neuron.device_count())"
    )
    assert run_python(program) == "4"


def test_no_cores_is_a_warning_with_the_reason(run_python):
    program = (
        "import warnings, torch\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    torch.manual_seed(1)\n"
        "    print(torch.neuron.is_available(), torch.accelerator.is_available())\n"
        "    print(torch.neuron.device_count())\n"
        "print([str(warning.message) for warning in seen][0])\n"
        "uses = torch.neuron.current_device, torch.neuron.init, lambda: torch.ones(1, device='neuron')\n"
        "for use in uses:\n"
        "    try: use()\n"
        "    except RuntimeError as error: print(error)\n"
    )
    reason = "NEURON_RT_NUM_CORES=9: trn2.3xlarge has 4 cores"
    assert run_python(program, NEURON_RT_NUM_CORES="9").splitlines() == [
        "False False",
        "0",
        f"neuron has no cores: {reason}",
        *[reason] * 3,
    ]
