"""What may be called a result from hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnready.run.stack import Machine, host_cpu, installed, packages, stack_of

TRAINIUM = Machine((Path("/dev/neuron0"),), "trn2.48xlarge")
LAPTOP = Machine((), None)
AWS = {"torch_neuronx": "2.13.3.0", "neuronx-cc": "2.28.7631.0", "transformers": "5.24.0"}


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
    assert packages(("transformers", "accelerate"), {"transformers": "5.24.0"}) == [
        "transformers==5.24.0",
        "accelerate",
    ]


def test_this_python_is_described(neuron):
    found = installed()
    assert found.versions["torch_neuronx"] == found.neuronx_cc
    assert found.library_version == found.versions["transformers"]
    assert host_cpu()
