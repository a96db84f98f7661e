"""What people do with a cluster. Each command is a module.

`neuron-taints` looks at taints and takes an operator's word about them, `neuron-remediator uninstall` takes everything
of ours away. Both read the cluster and say what they saw. The one writes nothing but a release onto a record, the other
changes nothing but what carries our mark. What is said is made by pure modules (`listing`, `explanation`, `plan`,
`leftovers`, `consequences`) and shown by one other (`rendering`).
"""
