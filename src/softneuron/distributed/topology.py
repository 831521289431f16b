"""Which numbers of ranks a Trainium instance takes, and which core each rank gets. Called by `backend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from softneuron.runtime.instances import CUSTOM, Configuration


class WorldRefused(RuntimeError):
    """Ranks that the instance has no cores for. The message says what it takes."""


_SMALL_WORLDS = {"trn1": (1, 2, 8, 16), "trn1n": (1, 2, 8, 16)}
_SMALL_WORLDS_LATER = (1, 2, 4, 8, 16)
_STEP = 32


class Seat(NamedTuple):
    """Where a rank runs: host name, process id, and the number of its core on the whole machine."""

    host: str
    process: int
    core: int

    def encode(self) -> str:
        """As text for the store."""
        return f"{self.process} {self.core} {self.host}"

    @classmethod
    def decode(cls, text: str) -> Seat:
        """What `encode` wrote."""
        process, core, host = text.split(" ", 2)
        return cls(host, int(process), int(core))


def legal_world_sizes(configuration: Configuration, cores: int) -> tuple[int, ...]:
    """Numbers of ranks up to `cores` that the instance takes, smallest first.

    Trainium connects 1, 2, 4, 8, 16 or a multiple of 32 cores (not 4 on the
    first generation); the instance `custom` takes any number.
    """
    if configuration.instance == CUSTOM:
        return tuple(range(1, cores + 1))
    small = _SMALL_WORLDS.get(configuration.family, _SMALL_WORLDS_LATER)
    return tuple(size for size in range(1, cores + 1) if size in small or size % _STEP == 0)


def check_world(world_size: int, configuration: Configuration, hosts: int = 1) -> None:
    """Refuse a number of ranks that the instance's cores cannot form.

    Raises:
        WorldRefused: names the sizes that work.
    """
    sizes = legal_world_sizes(configuration, configuration.cores * hosts)
    if world_size in sizes:
        return
    where = f"{configuration.instance} with {configuration.cores} visible NeuronCores"
    choice = ", ".join(map(str, sizes))
    if world_size > configuration.cores * hosts:
        raise WorldRefused(
            f"{world_size} ranks were started on {where}: every rank needs a core of its own. "
            f"Start {choice} ranks (torchrun --nproc_per_node), or name a larger SOFTNEURON_INSTANCE."
        )
    raise WorldRefused(
        f"Trainium does not connect {world_size} cores: on {where} a process group has {choice} ranks. "
        "For software cores without that rule set SOFTNEURON_INSTANCE=custom and SOFTNEURON_CORES."
    )


def check_seats(seats: Sequence[Seat]) -> None:
    """Refuse two ranks on one core.

    Raises:
        WorldRefused: names both ranks and the core.
    """
    taken: dict[tuple[str, int], int] = {}
    for rank, seat in enumerate(seats):
        other = taken.setdefault((seat.host, seat.core), rank)
        if other != rank:
            raise WorldRefused(
                f"ranks {other} and {rank} are both on NeuronCore {seat.core} of {seat.host}: every rank "
                "needs a core of its own. torchrun sets LOCAL_RANK, which picks it; NEURON_RT_VISIBLE_CORES "
                "must leave as many cores as there are ranks."
            )


def core_for_rank(rank: int, environment: Mapping[str, str], cores: int) -> int | None:
    """The core that a rank should move to, None when `LOCAL_RANK` has picked one already."""
    if environment.get("LOCAL_RANK", "").strip():
        return None
    return rank if rank < cores else None


def count_hosts(world_size: int, environment: Mapping[str, str]) -> int:
    """Machines that a run of `world_size` ranks spans, from `LOCAL_WORLD_SIZE`; 1 where nobody says so."""
    text = environment.get("LOCAL_WORLD_SIZE", "").strip()
    local = int(text) if text.isdecimal() else 0
    return max(1, world_size // local) if local else 1
