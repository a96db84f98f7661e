"""A stand-in for the part of a Trainium node that cannot be had without the hardware."""
