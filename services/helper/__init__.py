"""The helper beside every learner: fetches, ships, reports and stores for it."""
