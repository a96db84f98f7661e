"""The exporter: from driver files to the page Prometheus scrapes."""
