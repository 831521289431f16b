"""`torch.neuron`: cores, instances, memory, random numbers, streams; file by file as in `torch.cuda`."""
