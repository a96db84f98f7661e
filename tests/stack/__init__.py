"""A real Kubernetes control plane, Prometheus and Alertmanager, run as processes on loopback for tests and demos."""
