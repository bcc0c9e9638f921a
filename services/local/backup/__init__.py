"""`weft backup` and `weft restore`: a platform in one file, independent of its stores (docs/adr/0009-backup.md)."""
