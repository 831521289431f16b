"""What may be called a result from hardware."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trnready.run.stack import (
    Machine,
    NoInterpreter,
    host_cpu,
    installed,
    is_broken_on_purpose,
    missing,
    packages,
    stack_of,
    without_device,
)

TRAINIUM = Machine((Path("/dev/neuron0"),), "trn2.48xlarge")
LAPTOP = Machine((), None)
AWS = {"torch_neuronx": "2.13.3.0", "neuronx-cc": "2.28.7631.0", "transformers": "5.24.0"}


@pytest.mark.parametrize(
    ("compiler", "broken"), [("soft-0.1.0", False), ("soft-0.1.0+faults", True), ("2.28.7631.0", False)]
)
def test_a_device_that_is_broken_on_purpose_shows_in_its_compiler(compiler, broken):
    assert is_broken_on_purpose(compiler) is broken


def test_hardware_takes_devices_a_compiler_and_awss_own_backend():
    found = stack_of(AWS, None, TRAINIUM)
    assert (found.device_kind, found.neuronx_cc, found.instance) == (
        "hardware",
        "2.28.7631.0",
        "trn2.48xlarge",
    )


@pytest.mark.parametrize(
    ("versions", "machine", "compiler"),
    [
        (AWS, LAPTOP, "unknown"),
        ({**AWS, "torch_neuronx": "soft-0.1.0"}, TRAINIUM, "soft-0.1.0"),
        ({**AWS, "torch_neuronx": "soft-0.1.0"}, LAPTOP, "soft-0.1.0"),
        ({"torch_neuronx": "2.13.3.0"}, TRAINIUM, "unknown"),
        ({"neuronx-cc": "2.28.7631.0"}, TRAINIUM, "unknown"),
        ({}, TRAINIUM, "unknown"),
    ],
)
def test_everything_else_is_software(versions, machine, compiler):
    found = stack_of(versions, None, machine)
    assert (found.device_kind, found.neuronx_cc) == ("software", compiler)


def test_the_device_names_its_instance_before_the_machine_does():
    assert stack_of(AWS, "trn2.3xlarge", TRAINIUM).instance == "trn2.3xlarge"
    assert stack_of({"torch_neuronx": "soft-1"}, None, TRAINIUM).instance is None


def test_packages_are_pinned_to_what_ran():
    versions = {"transformers": "5.24.0"}
    assert packages(sys.executable, ("transformers", "accelerate"), {}, versions) == [
        "transformers==5.24.0",
        "accelerate",
    ]


def test_what_a_model_needs_besides_is_found_from_what_its_run_imported():
    imported = {
        "tiktoken": "0.9",
        "numpy": "2.4.6",  # Transformers brings it along
        "torch-neuronx": "2.13.3.0",  # the stack itself
        "jaraco.text": "4.0",  # no package of Transformers
        "soundfile": "0.14",  # imported whenever it is there
    }
    found = packages(sys.executable, ("transformers",), imported, {"transformers": "5.24.0"})
    assert found == ["transformers==5.24.0", "tiktoken==0.9"]


def test_the_cpus_numbers_do_not_depend_on_the_device():
    versions = {"torch": "2.13.0", "torch_neuronx": "soft-0.1.0", "torch-neuronx": "2", "neuronx-cc": "2"}
    assert without_device(versions) == {"torch": "2.13.0"}


def test_this_python_is_described(neuron):
    found = installed(sys.executable, ("torch", "transformers", "no-such-package"))
    assert found.versions["torch_neuronx"] == found.neuronx_cc
    assert found.version_of("transformers") == found.versions["transformers"]
    assert found.version_of("no-such-package") == "unknown"
    assert host_cpu()


def test_what_an_environment_lacks():
    names = ["torch", "no-such-package", "sentence-transformers"]
    assert missing(sys.executable, names) == ["no-such-package"]
    other = str(Path(sys.executable).with_name("python3"))
    assert missing(other, names) == ["no-such-package"]
    with pytest.raises(NoInterpreter, match="/no/such/python is no interpreter to test with: No such file"):
        missing("/no/such/python", ["torch"])


def test_an_interpreter_that_is_none_is_unknown():
    found = installed("/no/such/python", ("torch",))
    assert (found.device_kind, found.neuronx_cc, found.versions) == ("software", "unknown", {})
