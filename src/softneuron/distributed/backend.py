"""Makes process groups `neuron` for `torch.distributed`, which asks `registration` for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from softneuron import _C
from softneuron.distributed.topology import Seat, check_seats, check_world, core_for_rank, count_hosts
from softneuron.runtime import instances


def create_process_group(options: Any, backend_options: object) -> Any:
    """The C++ process group of this rank, connected to the others.

    `options` is PyTorch's `_DistributedBackendOptions`; `backend_options` has
    nothing that a software core needs.

    Raises:
        WorldRefused: for a number of ranks that the instance does not take, and
            for two ranks on one core.
    """
    rank, size, store = options.group_rank, options.group_size, options.store
    members = list(options.global_ranks_in_group) or list(range(size))
    whole_world = not options.global_ranks_in_group
    configuration = instances.read_configuration(os.environ)
    if whole_world:
        check_world(size, configuration, hosts=count_hosts(size, os.environ))
        core = core_for_rank(rank, os.environ, configuration.cores)
        if core is not None:
            _C.configure_cores(configuration.cores, core)
    seats = _meet(store, rank, size)
    if whole_world:
        check_seats(seats)
    timeout = _as_timedelta(options.timeout)
    carrier = torch.distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)
    carrier._set_sequence_number_for_group()
    peers = [(member, seat.host, seat.process) for member, seat in zip(members, seats, strict=True)]
    return _C.ProcessGroupNeuron(carrier=carrier, store=store, timeout=timeout, peers=peers)


def _as_timedelta(timeout: timedelta | float) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


def _meet(store: Any, rank: int, size: int) -> Sequence[Seat]:
    """Tell the other ranks where this one runs, and learn where they do."""
    seat = Seat(socket.gethostname(), os.getpid(), _machine_core())
    store.set(f"softneuron/seat/{rank}", seat.encode())
    return [Seat.decode(store.get(f"softneuron/seat/{other}").decode()) for other in range(size)]


def _machine_core() -> int:
    """The current core's number on the whole machine, which `NEURON_RT_VISIBLE_CORES` may have renumbered."""
    current = int(_C.current_core())
    visible = os.environ.get("NEURON_RT_VISIBLE_CORES", "").strip()
    return instances.parse_cores(visible)[current] if visible else current
