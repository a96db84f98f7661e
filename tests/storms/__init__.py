"""The remediator on the real stack while processes die, connections hang and the API server goes away."""
