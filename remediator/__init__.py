"""The remediator: alerts in, Kubernetes taints out, one record for each fault on each device."""
