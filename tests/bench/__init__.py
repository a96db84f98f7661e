"""How fast the product is, as ratios to a floor measured in the same run: machines are noisy, ratios less so."""
