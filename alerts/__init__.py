"""What counts as a fault of a Neuron device, and the Prometheus rules that say so.

A leaf: both services import it, it imports the standard library only.
"""
