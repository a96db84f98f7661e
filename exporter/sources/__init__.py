"""Signal sources: one module each, parsing split from input and output."""
