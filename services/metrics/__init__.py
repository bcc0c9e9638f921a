"""The training metrics service: takes in logs, metrics and learner status; stores, queries, streams them."""
