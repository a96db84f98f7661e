"""The rules, seen by promtool, and the properties of the table they are made from."""
