"""Reads the health of Neuron devices on one node and exports it as Prometheus metrics."""
