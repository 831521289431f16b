"""Which numbers of ranks an instance takes, and which core a rank gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softneuron.distributed.topology import (
    Seat,
    WorldRefused,
    check_seats,
    check_world,
    core_for_rank,
    count_hosts,
    legal_world_sizes,
)
from softneuron.runtime.instances import Configuration, read_configuration


def configuration(instance: str = "trn2.3xlarge", **environment: str) -> Configuration:
    return read_configuration({"SOFTNEURON_INSTANCE": instance, **environment})


@pytest.mark.parametrize(
    ("instance", "sizes"),
    [
        ("trn1.2xlarge", (1, 2)),
        ("trn1.32xlarge", (1, 2, 8, 16, 32)),
        ("trn2.3xlarge", (1, 2, 4)),
        ("trn2.48xlarge", (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_legal_sizes(instance: str, sizes: tuple[int, ...]) -> None:
    chosen = configuration(instance)
    assert legal_world_sizes(chosen, chosen.cores) == sizes


def test_custom_instance_takes_any_size() -> None:
    chosen = configuration("custom", SOFTNEURON_CORES="3")
    assert legal_world_sizes(chosen, chosen.cores) == (1, 2, 3)
    check_world(3, chosen)


def test_refusal_names_the_legal_sizes() -> None:
    with pytest.raises(
        WorldRefused, match=r"does not connect 3 cores.*has 1, 2, 4 ranks.*SOFTNEURON_INSTANCE=custom"
    ):
        check_world(3, configuration())


def test_more_ranks_than_cores() -> None:
    with pytest.raises(
        WorldRefused, match=r"8 ranks were started on trn2\.3xlarge with 4 visible.*Start 1, 2, 4"
    ):
        check_world(8, configuration())
    with pytest.raises(WorldRefused, match=r"4 ranks were started on trn2\.3xlarge with 2 visible"):
        check_world(4, configuration(NEURON_RT_VISIBLE_CORES="1-2"))


def test_several_hosts_add_up() -> None:
    check_world(8, configuration(), hosts=2)
    assert count_hosts(8, {"LOCAL_WORLD_SIZE": "4"}) == 2
    assert count_hosts(8, {}) == 1


def test_two_ranks_on_one_core() -> None:
    check_seats([Seat("a", 1, 0), Seat("a", 2, 1), Seat("b", 3, 0)])
    with pytest.raises(WorldRefused, match="ranks 1 and 2 are both on NeuronCore 5 of a"):
        check_seats([Seat("a", 1, 4), Seat("a", 2, 5), Seat("a", 3, 5)])


def test_rank_picks_the_core_where_nobody_else_did() -> None:
    assert core_for_rank(2, {}, 4) == 2
    assert core_for_rank(2, {"LOCAL_RANK": "0"}, 4) is None
    assert core_for_rank(5, {}, 4) is None


@given(
    st.text(st.characters(codec="ascii", exclude_characters="\n"), min_size=1),
    st.integers(0, 2**31),
    st.integers(0, 127),
)
def test_a_seat_survives_the_store(host: str, process: int, core: int) -> None:
    seat = Seat(host, process, core)
    assert Seat.decode(seat.encode()) == seat
