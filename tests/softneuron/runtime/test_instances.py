"""The environment's way of saying how many cores there are and how much memory they have."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softneuron.runtime.instances import (
    GIB,
    ConfigurationError,
    parse_bytes,
    parse_cores,
    read_configuration,
)


def test_default_is_one_trainium2_chip_of_four_logical_cores():
    configuration = read_configuration({})
    assert (configuration.instance, configuration.cores, configuration.bytes_per_core) == (
        "trn2.3xlarge",
        4,
        24 * GIB,
    )


@pytest.mark.parametrize(
    ("environment", "cores", "gib"),
    [
        ({"SOFTNEURON_INSTANCE": "trn1.2xlarge"}, 2, 16),
        ({"SOFTNEURON_INSTANCE": "trn1.32xlarge"}, 32, 16),
        ({"SOFTNEURON_INSTANCE": "trn2.48xlarge"}, 64, 24),
        ({"SOFTNEURON_INSTANCE": "trn3"}, 4, 36),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, 8, 12),
        ({"NEURON_RT_VISIBLE_CORES": "1-2"}, 2, 24),
        ({"NEURON_RT_VISIBLE_CORES": "0,3"}, 2, 24),
        ({"NEURON_RT_NUM_CORES": "3"}, 3, 24),
        ({"NEURON_RT_NUM_CORES": "3", "NEURON_RT_VISIBLE_CORES": "2"}, 1, 24),
        ({"SOFTNEURON_INSTANCE": "custom", "SOFTNEURON_CORES": "3"}, 3, 24),
    ],
)
def test_instances_and_visible_cores(environment, cores, gib):
    configuration = read_configuration(environment)
    assert (configuration.cores, configuration.bytes_per_core) == (cores, gib * GIB)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"SOFTNEURON_INSTANCE": "trn9"}, "trn2.3xlarge"),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "1 or 2"),
        ({"NEURON_LOGICAL_NC_CONFIG": "2", "SOFTNEURON_INSTANCE": "trn1.2xlarge"}, "takes 1"),
        ({"NEURON_RT_VISIBLE_CORES": "0-"}, "0-3"),
        ({"NEURON_RT_VISIBLE_CORES": "4"}, "has 4"),
        ({"NEURON_RT_NUM_CORES": "many"}, "whole number"),
        ({"SOFTNEURON_HBM_PER_CORE": "lots"}, "64MiB"),
        ({"LOCAL_RANK": "-1"}, "whole number"),
    ],
)
def test_a_malformed_value_names_the_variable_and_what_it_takes(environment, named):
    with pytest.raises(ConfigurationError) as error:
        read_configuration(environment)
    assert next(iter(environment)) in str(error.value)
    assert named in str(error.value)


def test_local_rank_picks_the_core():
    assert read_configuration({"LOCAL_RANK": "3"}).default_core == 3


@given(st.integers(1, 2**50))
def test_plain_numbers_are_bytes(count):
    assert parse_bytes(str(count)) == count
    assert parse_bytes(f" {count} KiB ") == count * 1024


@given(st.lists(st.integers(0, 200), min_size=1, unique=True))
def test_a_list_of_cores_is_read_back(cores):
    assert parse_cores(",".join(map(str, cores))) == tuple(cores)


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_range_of_cores_includes_both_ends(first, length):
    assert parse_cores(f"{first}-{first + length}") == tuple(range(first, first + length + 1))


@given(st.text(max_size=12))
def test_any_text_is_cores_or_a_sentence(text):
    with contextlib.suppress(ConfigurationError):
        assert parse_cores(text)


def test_a_bad_environment_is_told_at_first_use_and_import_torch_goes_on(run_python):
    program = (
        "import torch\n"
        "print(torch.neuron.is_available())\n"
        "try: torch.ones(1, device='neuron')\n"
        "except RuntimeError as error: print(error)"
    )
    output = run_python(program, NEURON_RT_VISIBLE_CORES="a-b").splitlines()
    assert output[0] == "False"
    assert output[1].startswith("NEURON_RT_VISIBLE_CORES: 'a-b' names no cores")
