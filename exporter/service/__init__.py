"""What every long-running process here shares: flags, logs, metrics and health endpoints, graceful stop.

A leaf: it must not know what the services do, so it imports neither of them nor the fault table.
"""
