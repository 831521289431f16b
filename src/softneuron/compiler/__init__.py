"""`torch.compile(backend="neuron")`: lower a graph, build it once, keep it in the NEFF cache."""
