"""Before a model is run: how many NeuronCores it needs, split how, and whether a shrunk twin of it runs."""
