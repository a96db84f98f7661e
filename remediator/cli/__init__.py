"""`neuron-taints`: what is tainted, why, and an operator's word about it. Each command is a module.

It reads the cluster once and says what it saw; the only thing it ever writes is a release onto a record. What is said
is made by pure modules (`listing`, `explanation`, `plan`) and shown by one other (`rendering`).
"""
