"""The rules for names: DNS subdomains, as Kubernetes calls those of Nodes, drivers and objects, and devices. Pure."""

from __future__ import annotations

import re

SUBDOMAIN_LIMIT = 253
"""Longest such name the API server takes."""

DEVICE = re.compile(r"0|[1-9][0-9]{0,3}")
"""A Neuron device's index as text."""

TAINT_KEY = "neuron.aws.com/device-unhealthy"
"""The key of our taints unless the operator says otherwise: the driver's own, by the AWS guide."""

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def is_subdomain(text: str, *, limit: int = SUBDOMAIN_LIMIT) -> bool:
    """Whether the text is a DNS-1123 subdomain of at most `limit` characters."""
    return len(text) <= limit and _SUBDOMAIN.fullmatch(text) is not None
