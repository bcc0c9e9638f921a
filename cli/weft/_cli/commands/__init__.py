"""The commands, each imported when it is called and not before."""
