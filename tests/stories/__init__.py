"""The product as its users meet it, on real parts."""
