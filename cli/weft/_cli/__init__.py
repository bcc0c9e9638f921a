"""The command line `weft`. Nothing here is imported by the SDK."""
