"""Tests, the real stack they run on, the simulated driver, the demo and the benchmark."""
