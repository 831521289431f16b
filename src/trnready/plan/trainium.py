"""The Trainium machines that a plan may name: how many NeuronCores, how large, and which counts are allowed.
`trnready.plan.planner` decides with it; the numbers are those of AWS's hardware pages and runtime
messages."""

from __future__ import annotations

from dataclasses import dataclass

from trnready.errors import TrnreadyError

GIB = 1024**3

MOST_CORES = 16
"""A test uses at most 4 Trainium2 chips (S12)."""

LARGER_SIZES = (32, 64, 128, 256)
"""Counts beyond a test's, to say how many cores a model that is too large would need."""


class NoSuchSize(TrnreadyError):
    """A number of cores or an instance that Trainium does not have."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 size: its logical NeuronCores, bytes of memory of each, and the counts a program may use."""

    name: str
    cores: int
    bytes_per_core: int
    sizes: tuple[int, ...]


_TRN1 = (1, 2, 8, 16)
_TRN2 = (1, 2, 4, 8, 16)

INSTANCES = {
    each.name: each
    for each in (
        Instance("trn1.2xlarge", 2, 16 * GIB, _TRN1),
        Instance("trn1.32xlarge", 32, 16 * GIB, _TRN1),
        Instance("trn2.3xlarge", 4, 24 * GIB, _TRN2),
        Instance("trn2.48xlarge", 64, 24 * GIB, _TRN2),
    )
}

SMALL = INSTANCES["trn2.3xlarge"]
LARGE = INSTANCES["trn2.48xlarge"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a plan may use: the counts of cores in rising order, bytes of each core, and the instance asked
    for, None to let the count decide."""

    sizes: tuple[int, ...]
    bytes_per_core: int
    instance: str | None

    def instance_of(self, cores: int) -> str:
        """Give the instance to name for this many cores (S12)."""
        if self.instance is not None:
            return self.instance
        return SMALL.name if cores <= SMALL.cores else LARGE.name


def machine(instance: str | None, max_cores: int) -> Machine:
    """Give what a plan may use on this instance (None: Trainium2 of whichever size) with at most so many
    cores. Raises `NoSuchSize`."""
    if max_cores < 1:
        raise NoSuchSize(f"{max_cores} cores are none: --max-cores takes 1 to {MOST_CORES}.")
    if max_cores > MOST_CORES:
        raise NoSuchSize(
            f"a test uses at most {MOST_CORES} cores, four Trainium2 chips, so that nothing is planned for "
            f"{max_cores}: --max-cores takes 1 to {MOST_CORES}."
        )
    if instance is None:
        chosen, most = LARGE, MOST_CORES
    elif instance in INSTANCES:
        chosen = INSTANCES[instance]
        most = min(chosen.cores, MOST_CORES)
    else:
        raise NoSuchSize(f"there is no instance {instance!r}; plans know {', '.join(INSTANCES)}.")
    sizes = tuple(size for size in chosen.sizes if size <= min(most, max_cores))
    return Machine(sizes, chosen.bytes_per_core, instance)


def check_size(cores: int, where: Machine) -> None:
    """Raise `NoSuchSize` for a number of cores that this machine does not allow."""
    if cores not in where.sizes:
        allowed = ", ".join(str(size) for size in where.sizes)
        if cores in LARGER_SIZES:
            raise NoSuchSize(
                f"a test uses at most {MOST_CORES} cores, four Trainium2 chips, so that nothing is planned "
                f"for {cores}; it may have {allowed}."
            )
        if cores in LARGE.sizes:
            raise NoSuchSize(f"{cores} cores are more than --max-cores or --instance leaves: {allowed}.")
        raise NoSuchSize(f"a program cannot have {cores} cores there; Trainium allows {allowed}.")
