"""`weft up`: the whole platform on one machine."""
