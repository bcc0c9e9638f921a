"""`weft backup` and `weft restore`: a platform in one file that knows no store (docs/adr/0009-backup.md)."""
