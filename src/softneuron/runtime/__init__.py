"""`torch.neuron`: cores, instances, memory, random state, streams and events, file by file as in `torch.cuda`."""
