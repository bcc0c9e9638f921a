"""One Guardian per job: provisions all of its learners or none, watches them, decides the end, releases everything."""
