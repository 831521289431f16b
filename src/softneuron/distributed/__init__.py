"""The process group `neuron` of `torch.distributed`: one process per core, collectives over Gloo."""
