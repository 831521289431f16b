"""Tensors and modules in the hands of pickle, files, NumPy, other processes and data loaders."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch.utils.data import DataLoader, TensorDataset

SAVED_TO_LOADED = [
    ("neuron:1", None, "neuron:1"),
    ("neuron:1", "cpu", "cpu"),
    ("cpu", "neuron:2", "neuron:2"),
    ("cpu", "neuron", "neuron:0"),
    ("neuron:1", torch.device("neuron:2"), "neuron:2"),
    ("neuron:1", {"neuron:1": "neuron:3"}, "neuron:3"),
    ("neuron:1", lambda storage, location: storage, "cpu"),
    ("cpu", lambda storage, location: storage.neuron(1), "neuron:1"),
    ("neuron:1", "meta", "meta"),
]


@pytest.mark.parametrize(("saved", "map_location", "loaded"), SAVED_TO_LOADED)
@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load_move_as_map_location_says(saved, map_location, loaded, weights_only):
    buffer = io.BytesIO()
    torch.save(
        {"numbers": torch.arange(4.0, device=saved), "state": torch.nn.Linear(2, 2).to(saved).state_dict()},
        buffer,
    )
    buffer.seek(0)
    found = torch.load(buffer, map_location=map_location, weights_only=weights_only)
    assert {str(found["numbers"].device), str(found["state"]["weight"].device)} == {loaded}
    if loaded != "meta":
        assert found["numbers"].tolist() == [0, 1, 2, 3]


def test_a_mapped_file_is_loaded_to_a_core(tmp_path: Path):
    torch.save({"numbers": torch.arange(4.0)}, tmp_path / "numbers.pt")
    numbers = torch.load(tmp_path / "numbers.pt", mmap=True, map_location="neuron:1")["numbers"]
    assert numbers.device == torch.device("neuron:1")
    assert numbers.add_(1).tolist() == [1, 2, 3, 4]


def test_pickle_copy_and_deepcopy_keep_the_core():
    tensor = torch.randn(3, device="neuron:1", requires_grad=True)
    for other in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), copy.copy(tensor)):
        assert other.device == tensor.device
        assert other.requires_grad
        assert torch.equal(other, tensor)
    module = torch.nn.Linear(2, 2).to("neuron:1")
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.weight.device == torch.device("neuron:1")
        assert torch.equal(other.weight, module.weight)
    assert pickle.loads(pickle.dumps(torch.device("neuron:1"))) == torch.device("neuron:1")


def test_printing_shows_values_and_device():
    assert repr(torch.arange(3.0, device="neuron:1")) == "tensor([0., 1., 2.], device='neuron:1')"
    assert "device='neuron:0', requires_grad=True" in repr(torch.nn.Parameter(torch.ones(1, device="neuron")))
    assert f"{torch.tensor(1.5, device='neuron'):.2f}" == "1.50"
    assert "[torch.storage.UntypedStorage(device=neuron:0) of size 4]" in repr(
        torch.ones(1, device="neuron").untyped_storage()
    )
    assert torch.ones(1, device="neuron").type() == "torch.neuron.FloatTensor"


@pytest.mark.parametrize("device", ["neuron:1", "neuron", torch.device("neuron:2"), 3, "cpu"])
def test_safetensors_are_saved_from_a_core_and_loaded_to_one(tmp_path: Path, device):
    file = tmp_path / "weights.safetensors"
    safetensors.torch.save_file({"weight": torch.arange(6.0, device="neuron:1").view(2, 3)}, file)
    expected = torch.ones(1, device=device).device
    loaded = safetensors.torch.load_file(file, device=device)["weight"]
    assert loaded.device == expected
    assert loaded.tolist() == [[0, 1, 2], [3, 4, 5]]
    with safe_open(file, "pt", device=device) as opened:
        part = opened.get_slice("weight")[:, 1:]
        assert part.device == expected
        assert part.tolist() == [[1, 2], [4, 5]]


def test_safetensors_fill_a_module_on_a_core(tmp_path: Path):
    file, module = tmp_path / "module.safetensors", torch.nn.Linear(2, 2).to("neuron:1")
    safetensors.torch.save_model(module, str(file))
    expected = module.weight.detach().clone()
    module.weight.data.zero_()
    safetensors.torch.load_model(module, file, device="neuron:1")
    assert torch.equal(module.weight, expected)
    with pytest.raises(RuntimeError, match="neuron:9 does not exist"):
        safetensors.torch.load_file(file, device="neuron:9")


def test_numpy_and_dlpack_say_to_copy_to_the_cpu_first():
    tensor = torch.ones(2, device="neuron")
    for reach in (tensor.numpy, lambda: np.asarray(tensor), lambda: np.add(tensor, 1)):
        with pytest.raises(
            TypeError, match=r"can't convert neuron:0 device type tensor to numpy. Use Tensor.cpu\(\)"
        ):
            reach()
    for reach in (lambda: np.from_dlpack(tensor), lambda: torch.from_dlpack(tensor), tensor.__dlpack__):
        with pytest.raises(BufferError, match=r"can't export a neuron:0 tensor .* Use Tensor.cpu\(\)"):
            reach()
    assert tensor.numpy(force=True).tolist() == [1, 1]
    assert np.from_dlpack(torch.ones(2)).tolist() == [1, 1]


def test_pinned_memory_says_so():
    for pinned in (torch.ones(3).pin_memory(), torch.empty(3, pin_memory=True)):
        assert pinned.is_pinned()
        assert pinned[1:].is_pinned()
        assert pinned.to("neuron", non_blocking=True).device.type == "neuron"
    assert not torch.ones(3).is_pinned()
    for refused in (
        lambda: torch.ones(3, device="neuron").pin_memory(),
        lambda: torch.empty(3, device="neuron", pin_memory=True),
    ):
        with pytest.raises(RuntimeError, match=r"[Oo]nly dense CPU tensors can be pinned"):
            refused()


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_feed_a_core(workers, pin):
    torch.ones(1, device="neuron")
    data = TensorDataset(torch.arange(12.0).view(6, 2))
    batches = [batch for (batch,) in DataLoader(data, batch_size=2, num_workers=workers, pin_memory=pin)]
    assert all(batch.is_pinned() is pin for batch in batches)
    moved = torch.cat([batch.to("neuron", non_blocking=True) for batch in batches])
    assert torch.equal(moved.cpu(), data.tensors[0])


def test_shared_memory_is_the_hosts():
    host = torch.ones(3).share_memory_()
    assert torch.equal(host.to("neuron").cpu(), torch.ones(3))
    assert host.is_shared()
    # As on CUDA: memory of a device counts as shared, and sharing a module leaves it where it is.
    assert torch.ones(3, device="neuron").share_memory_().is_shared()
    assert torch.nn.Linear(2, 2).to("neuron").share_memory().weight.device.type == "neuron"
    with pytest.raises(RuntimeError, match="only available on CPU"):
        torch.multiprocessing.reductions.reduce_storage(torch.ones(3, device="neuron").untyped_storage())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints_hold_core_tensors(tmp_path: Path):
    import torch.distributed.checkpoint as checkpoint

    state = {"numbers": torch.arange(4.0, device="neuron")}
    checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    state["numbers"].zero_()
    checkpoint.load(state, checkpoint_id=tmp_path, no_dist=True)
    assert state["numbers"].tolist() == [0, 1, 2, 3]


def test_methods_named_after_the_device_move_tensors_modules_and_storages():
    assert torch.ones(2).neuron().is_neuron
    assert torch.ones(2).neuron(1, non_blocking=True).get_device() == 1
    module = torch.nn.Linear(2, 2)
    parameter, reference = module.weight, weakref.ref(module.weight)
    optimizer = torch.optim.AdamW(module.parameters())
    assert module.neuron(1).weight is parameter is reference() is optimizer.param_groups[0]["params"][0]
    assert module.to("neuron:2", torch.bfloat16).weight is parameter
    assert parameter.device == torch.device("neuron:2")
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 1), [3, 2], batch_first=True)
    assert packed.neuron().data.is_neuron
    assert torch.ones(2).untyped_storage().neuron(1).device == torch.device("neuron:1")


def test_modules_come_from_the_meta_device():
    with torch.device("meta"):
        module = torch.nn.Linear(3, 3)
    assert module.to_empty(device="neuron:1").weight.device == torch.device("neuron:1")
    weights = {"weight": torch.ones(3, 3), "bias": torch.ones(3)}
    module.load_state_dict(weights)
    assert module.weight.sum().item() == 9
    with torch.device("meta"):
        module = torch.nn.Linear(3, 3)
    module.load_state_dict({name: weight.to("neuron") for name, weight in weights.items()}, assign=True)
    assert module.weight.device == torch.device("neuron:0")


def test_a_module_whose_graph_is_alive_can_be_moved():
    module = torch.nn.Linear(3, 3)
    loss = module(torch.ones(1, 3)).sum()
    parameter = module.weight
    module.to("neuron")
    assert module.weight is parameter
    assert loss.item() == loss.item()
