"""One Guardian per job: provisions all of it or nothing, watches it, decides how it ends, and gives everything back."""
