"""What the libraries around PyTorch need to be told about `neuron`, at the moment that they are imported."""
