"""The commands of `neuron-taints`."""
