"""Training metrics: takes in logs, points and learner states; stores and serves them."""
