"""Tests of the remediator: deciding, records, the webhook, and the backends on the memory and on a real cluster."""
